"""The CPU allocator of `arena.cpp`: compiled once for each torch version, and called by ctypes.

Only C++ can take the place of PyTorch's CPU allocator. A compiler is needed for that the first
time, a second or two; without one steps run as ever, with the allocator that is there.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files.store import cache_directory

log = logging.getLogger("fxmem")

SOURCE = Path(__file__).with_name("arena.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "fxmem_install": (ctypes.c_int, []),
    "fxmem_arena_new": (
        _POINTER,
        [_INT, _INT, _INT, ctypes.c_int, _POINTER, _POINTER, _INT, _INT],
    ),
    "fxmem_arena_delete": (None, [_POINTER]),
    "fxmem_arena_of": (_POINTER, [_POINTER]),
    "fxmem_arena_state": (None, [_POINTER, _POINTER, _POINTER]),
    "fxmem_arena_trim": (None, [_POINTER]),
    "fxmem_begin": (ctypes.c_int, [_POINTER, ctypes.c_int, ctypes.c_int]),
    "fxmem_end": (None, [_POINTER, _POINTER]),
    "fxmem_record": (None, [ctypes.c_int]),
    "fxmem_mark": (None, [_INT]),
    "fxmem_recorded": (_INT, [_POINTER, _INT]),
}


class Unavailable(Exception):
    """Why there is no arena on this machine; never leaves fxmem."""


class Native:
    """The compiled allocator, in place of PyTorch's own from now on."""

    def __init__(self, library: Path) -> None:
        try:
            loaded = ctypes.CDLL(str(library))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise Unavailable(f"{library} cannot be loaded: {error}") from error
        if not loaded.fxmem_install():
            raise Unavailable("another CPU allocator is installed that cannot be built upon")
        self._library = loaded
        self.mark = loaded.fxmem_mark
        self.delete_arena = loaded.fxmem_arena_delete
        self.arena_of = loaded.fxmem_arena_of
        self.trim = loaded.fxmem_arena_trim
        self.begin = loaded.fxmem_begin
        self.record = loaded.fxmem_record

    def new_arena(
        self,
        size: int,
        segment: int,
        requests: tuple[np.ndarray, np.ndarray],
        forward: int,
        *,
        room: int | None,
        poisons: bool,
    ) -> int | None:
        """A handle of an arena for requests of (bytes, offsets); None: no address space.

        Parameters
        ----------
        size, segment : int
            Bytes of the arena, and of the parts in which its memory is taken and given back.
        requests : tuple of arrays
            Bytes and offset of each request of the step, in order; -1: not from the arena.
        forward : int
            How many of them belong to the forward part.
        room : int or None
            Bytes that others may add after a step before memory is given back; None: any.
        poisons : bool
            Freed ranges are filled with ones: not-a-number in every floating dtype.
        """
        sizes, offsets = (np.ascontiguousarray(a, np.int64) for a in requests)
        return self._library.fxmem_arena_new(
            size,
            segment,
            -1 if room is None else room,
            poisons,
            sizes.ctypes.data,
            offsets.ctypes.data,
            forward,
            len(sizes) - forward,
        )

    def state(self, handle: int) -> tuple[int, int]:
        """Live blocks of an arena, and the bytes that count as allocated."""
        live, committed = _INT(), _INT()
        self._library.fxmem_arena_state(handle, ctypes.byref(live), ctypes.byref(committed))
        return live.value, committed.value

    def end(self) -> tuple[int, int]:
        """End what `begin` began: requests served, and those that should have been and were not."""
        served, refused = _INT(), _INT()
        self._library.fxmem_end(ctypes.byref(served), ctypes.byref(refused))
        return served.value, refused.value

    def recorded(self) -> np.ndarray:
        """Events since `record`: rows of block, bytes (below zero: freed), mark."""
        count = self._library.fxmem_recorded(None, 0)
        events = np.zeros((count, 3), np.int64)
        self._library.fxmem_recorded(events.ctypes.data, count)
        return events

    def peak_of(self, call: Callable[[], Any]) -> int:
        """Most bytes at once that a call requests on this thread; its result counts."""
        self.record(1)
        self.mark(0)
        try:
            call()
        finally:
            self.mark(-1)
            sizes = self.recorded()[:, 1]
            self.record(0)
        return int(np.cumsum(sizes).max(initial=0))


@cache
def load() -> Native | None:
    """The allocator, compiled if it has to be; None where that cannot be had."""
    try:
        return Native(_library())
    except Unavailable as reason:
        log.info("steps run without an arena: %s", reason)
        return None


def _library() -> Path:
    """The shared library for this source and this torch."""
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"it is made for Linux, and this is {sys.platform}")
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    path = cache_directory() / "native" / f"arena-{key}.so"
    if not path.exists():
        _compile(path)
    return path


def _compile(path: Path) -> None:
    chosen = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    compiler = next((found for c in chosen if (found := shutil.which(c))), None)
    if compiler is None:
        raise Unavailable(f"no C++ compiler found among {', '.join(chosen)}")
    root = Path(torch.__file__).parent
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be at the same: each writes its own file and moves it in place.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, "-O2", "-std=c++20", "-shared", "-fPIC", str(SOURCE)]
            command += ["-I", str(root / "include"), "-L", str(root / "lib"), "-lc10"]
            command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
            done = subprocess.run(
                [*command, "-o", str(made)], capture_output=True, text=True, timeout=120
            )
            if done.returncode:
                raise Unavailable(f"{compiler} failed: {done.stderr.strip()[-500:]}")
            os.replace(made, path)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"it could not be compiled: {error}") from error
