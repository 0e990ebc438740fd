"""Storages moved to a file and back while the step computes, on the CPU.

Each direction of a tier is one thread, which serves in the order in which it is asked. A moved
storage is known to the graph by its *ticket*: a tensor of one number that autograd can save. The
room in the file is free again when the ticket's memory is, whoever held it last: so a second
backward reads it once more, and a dropped graph leaves nothing behind.

What it is moved to is a `spill.SpillFile`. CUDA has no tier yet.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ..errors import TransferError
from .spill import BLOCK, Buffer, SpillFile

#: Set to compare checksums of all that is moved.
CHECK = "FXMEM_CHECK_TRANSFERS"


@dataclass
class Copy:
    """One transfer at work, or done."""

    tensor: torch.Tensor | None
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass
class Stay:
    """A storage's time on a tier.

    Attributes
    ----------
    name : str
        Of the value, for messages.
    bytes, offset : int
    out : Copy
    back : Copy, optional
        The latest.
    checksum : int, optional
    """

    tier: DiskTier
    name: str
    bytes: int
    offset: int
    out: Copy
    back: Copy | None = None
    checksum: int | None = None


Work = Callable[[memoryview, Buffer], None]


class Link:
    """A thread that does one transfer after the other."""

    def __init__(self, name: str) -> None:
        self.jobs: queue.SimpleQueue[tuple[Copy, Work]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def ask(self, copy: Copy, work: Work) -> None:
        """Let ``work`` have the bytes of the copy's tensor, when its turn comes."""
        self.jobs.put((copy, work))

    def _serve(self) -> None:
        buffer = Buffer()
        while True:
            copy, work = self.jobs.get()
            try:
                assert copy.tensor is not None
                work(_bytes_of(copy.tensor), buffer)
            except BaseException as error:
                copy.error = error
            # Before anybody is told: whoever waits takes the memory to be free.
            copy.tensor = None
            copy.done.set()
            del copy, work


class DiskTier:
    """A file without a name in a directory, and the links to and from it."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        try:
            self.file = SpillFile(directory)
        except OSError as error:
            raise TransferError(
                f"no file can be made in {directory} to move values to: {error}.",
                "Give offload a directory that exists and can be written.",
            ) from error
        self.outward, self.inward = Link("fxmem-out"), Link("fxmem-in")
        self.lock = threading.Lock()
        self.free: dict[int, list[int]] = {}
        self.end = 0
        self.held_bytes = 0

    def take(self, size: int) -> int:
        """An offset with room for ``size`` bytes; steps ask for the same sizes again."""
        with self.lock:
            self.held_bytes += size
            if self.free.get(size):
                return self.free[size].pop()
            offset, self.end = self.end, self.end + -(-size // BLOCK) * BLOCK
            return offset

    def give_back(self, stay: Stay) -> None:
        """The room of ``stay`` may be used again; what is still being written there comes first."""
        with self.lock:
            self.held_bytes -= stay.bytes
            self.free.setdefault(stay.bytes, []).append(stay.offset)


_tiers: dict[tuple[int, str], DiskTier] = {}
_stays: dict[int, Stay] = {}
_numbers = iter(range(1, 1 << 62))
_lock = threading.Lock()


def tier_at(directory: str) -> DiskTier:
    """The tier in a directory, one for each process."""
    key = (os.getpid(), os.path.abspath(directory))
    with _lock:
        if key not in _tiers:
            _tiers[key] = DiskTier(key[1])
        return _tiers[key]


def copy_out(value: torch.Tensor, directory: str, name: str) -> torch.Tensor:
    """Begin to copy the whole storage of ``value``; returns its ticket.

    Parameters
    ----------
    value : torch.Tensor
        On the CPU; must not be written to until `wait_out`.
    directory : str
    name : str
        For messages.
    """
    tier = tier_at(directory)
    size = value.untyped_storage().nbytes()
    stay = Stay(tier, name, size, tier.take(size), Copy(value))
    check = bool(os.environ.get(CHECK))

    def work(memory: memoryview, buffer: Buffer) -> None:
        if check:
            stay.checksum = zlib.crc32(memory)
        tier.file.write(memory, stay.offset, buffer)

    # Memory of numpy's: torch's allocator, whose every byte is planned, has no part in it.
    number = np.array([next(_numbers)], dtype=np.int64)
    _stays[int(number[0])] = stay
    weakref.finalize(number, _forget, int(number[0])).atexit = False
    tier.outward.ask(stay.out, work)
    return torch.from_numpy(number)


def wait_out(ticket: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Wait until the copy is there; ``value`` is held until then, and may be freed afterwards.

    Raises
    ------
    TransferError
        It could not be written: the disk is full, or gone.
    """
    stay = _stays[int(ticket)]
    wait_for(stay, stay.out, "written to")
    return ticket


def copy_in(
    ticket: torch.Tensor, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Allocate a tensor, and begin to fill it; nobody may read it before `wait_in`."""
    stay = _stays[int(ticket)]
    value = torch.empty_strided(shape, strides, dtype=dtype)
    copy = stay.back = Copy(value)
    expected = stay.checksum

    def work(memory: memoryview, buffer: Buffer) -> None:
        stay.tier.file.read(memory, stay.offset, buffer)
        if expected is not None and zlib.crc32(memory) != expected:
            raise OSError("other bytes came back than were written")

    stay.tier.inward.ask(copy, work)
    return value


def wait_in(ticket: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Wait until ``value``, which `copy_in` made, is filled; returns it.

    Raises
    ------
    TransferError
        It could not be read.
    """
    stay = _stays[int(ticket)]
    assert stay.back is not None
    wait_for(stay, stay.back, "read back from")
    return value


#: What stands in a graph for transfers.
TRANSFERS = (copy_out, wait_out, copy_in, wait_in)


def held_bytes(directory: str) -> int:
    """Bytes that values take on the tier in ``directory`` now."""
    return tier_at(directory).held_bytes


def wait_for(stay: Stay, copy: Copy, what: str) -> None:
    """Wait until ``copy`` is done; ``what`` it does, for messages.

    Raises
    ------
    TransferError
        It failed.
    """
    copy.done.wait()
    if copy.error is not None:
        raise TransferError(
            f"{stay.name} ({stay.bytes} bytes) could not be {what} {stay.tier.directory}: "
            f"{copy.error}.",
            "This step is lost and nothing of it was applied; make room there or give offload "
            "another directory, and take the step again.",
        ) from copy.error


def _forget(number: int) -> None:
    """A ticket's memory is gone; runs wherever the last reference was dropped."""
    stay = _stays.pop(number)
    # The link serves in order: what is still being written comes before the next writer there.
    stay.tier.give_back(stay)


def _bytes_of(value: torch.Tensor) -> memoryview:
    storage = value.untyped_storage()
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
