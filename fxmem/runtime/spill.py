"""A file without a name for bytes that are moved out of memory, past the page cache.

Written in the usual way, bytes land in the page cache first: memory again, filled by a processor
that the step wants for itself. With ``O_DIRECT`` (Linux, most file systems on a disk) the device
fetches them by itself. It asks for addresses, offsets and lengths in whole blocks; what is not so
goes through a small buffer. Elsewhere the file is written in the usual way.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import IO

import numpy as np

#: Offsets and lengths in the file are multiples of it (`statx(2)`: no device asks for more).
BLOCK = 4096
#: Addresses that are multiples of it need no buffer in between, on all but rare devices.
ADDRESS = 512

_CHUNK = 1 << 20

# Tests let these fail.
pwrite, preadv = os.pwrite, os.preadv


class Buffer:
    """Memory of whole pages, for what is not aligned; each thread has its own."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, _CHUNK))
        self.array = np.frombuffer(self.memory, np.uint8)


class SpillFile:
    """A file without a name in a directory; the system takes it back however the process ends.

    Parameters
    ----------
    directory : str

    Attributes
    ----------
    direct : bool
        Does it bypass the page cache?

    Raises
    ------
    OSError
        No file can be made there.
    """

    def __init__(self, directory: str) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 - open while we run
            dir=directory, prefix="fxmem-", buffering=0
        )
        self.direct = _bypass_cache(self.file.fileno())

    def write(self, memory: memoryview, offset: int, buffer: Buffer) -> None:
        """Write ``memory``, of which the last block may be padded, at ``offset``."""
        whole = self._unbuffered(memory)
        self._all(_put, memory[:whole], offset)
        for at, part in _parts(memory, whole):
            np.copyto(buffer.array[: len(part)], part)
            self._all(_put, buffer.memory[: _blocks(len(part))], offset + at)

    def read(self, memory: memoryview, offset: int, buffer: Buffer) -> None:
        """Fill ``memory`` with what was written at ``offset``."""
        whole = self._unbuffered(memory)
        self._all(_get, memory[:whole], offset)
        for at, part in _parts(memory, whole):
            self._all(_get, buffer.memory[: _blocks(len(part))], offset + at)
            np.copyto(part, buffer.array[: len(part)])

    def _unbuffered(self, memory: memoryview) -> int:
        """Bytes from its start that need no buffer."""
        if not self.direct:
            return len(memory)
        if len(memory) < BLOCK or np.frombuffer(memory, np.uint8).ctypes.data % ADDRESS:
            return 0
        return len(memory) // BLOCK * BLOCK

    def _all(
        self, move: Callable[[int, memoryview, int], int], memory: memoryview, offset: int
    ) -> None:
        """Go on until all is moved: the system may do it in parts."""
        done = 0
        while done < len(memory):
            moved = move(self.file.fileno(), memory[done:], offset + done)
            if self.direct:
                moved -= moved % BLOCK  # it can only go on from there
            if moved <= 0:
                raise OSError(f"the file ends too soon for {len(memory)} bytes")
            done += moved


def _put(file: int, memory: memoryview, offset: int) -> int:
    return pwrite(file, memory, offset)


def _get(file: int, memory: memoryview, offset: int) -> int:
    return preadv(file, [memory], offset)


def _parts(memory: memoryview, first: int) -> Iterator[tuple[int, np.ndarray]]:
    """What goes through a buffer: bytes from ``first`` on, and where they lie."""
    held = np.frombuffer(memory, np.uint8)
    for at in range(first, len(held), _CHUNK):
        yield at, held[at : at + _CHUNK]


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _bypass_cache(file: int) -> bool:
    """Ask for ``O_DIRECT`` and try it; the file is as it was where that is refused."""
    if not hasattr(os, "O_DIRECT"):
        return False
    import fcntl  # not on Windows

    before = fcntl.fcntl(file, fcntl.F_GETFL)
    trial = Buffer().memory[ADDRESS : ADDRESS + BLOCK]
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, before | os.O_DIRECT)
        if os.pwrite(file, trial, 0) == BLOCK and os.preadv(file, [trial], 0) == BLOCK:
            return True
    except OSError:
        pass
    with contextlib.suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETFL, before)
    return False
