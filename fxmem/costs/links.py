"""Bandwidth, latency and toll of a tier, measured once and kept on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache as remember
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes  # private; 2.11 to 2.15

from ..files.store import BadFile, cache_directory, read_json, write_json
from ..runtime.spill import ADDRESS, Buffer
from ..runtime.transfer import Copy, DiskTier, Link, Stay, tier_at, wait_for
from ..solvers.transfer import Tier

_SMALL, _LARGE = 1 << 16, 1 << 22
_REPEATS, _SECONDS = 5, 0.1
# Write and read: bandwidths, latencies, tolls of `Tier`.
Figures = tuple[int, int, int, int, int, int]


def measure_tier(directory: str, cache: bool = True) -> Tier:
    """The tier in a directory, measured once, beside a processor at work.

    Raises
    ------
    TransferError
        It cannot be written to.
    """
    write, read, write_latency, read_latency, write_toll, read_toll = _known(directory, cache)
    free = shutil.disk_usage(directory).free
    return Tier(directory, write, read, write_latency, read_latency, free, write_toll, read_toll)


@remember
def _known(directory: str, cache: bool) -> Figures:
    file = cache_directory() / "links.json"
    way = "direct" if tier_at(directory).file.direct else "cached"
    key = f"{os.path.realpath(directory)} on device {os.stat(directory).st_dev}, {way}"
    rows = _read(file) if cache else {}
    if _is_row(rows.get(key)):
        write, read, *rest = rows[key]
        return (write, read, *rest)
    found = _measure(directory)
    if cache:
        with contextlib.suppress(OSError):
            write_json(file, {**_read(file), key: list(found)})
    return found


def _measure(directory: str) -> Figures:
    """What a directory's file takes, beside a processor at work."""
    # The caller may be in the midst of a trace, whose fake mode would move nothing.
    with _disable_current_modes():
        found = [_direction(tier_at(directory), outward) for outward in (True, False)]
    (write, write_latency, write_toll), (read, read_latency, read_toll) = found
    return write, read, write_latency, read_latency, write_toll, read_toll


def _direction(tier: DiskTier, outward: bool) -> tuple[int, int, int]:
    """Bytes a second, nanoseconds of latency, and of the processor for each 10**9 bytes.

    All the while the processor computes, as a step does: where a virtual machine's disk is served
    by the same cores, or the system copies what is moved, each slows the other down.
    """
    with _Trial(tier, _SMALL, outward) as trial:
        small = statistics.median(_timed(trial.move) for _ in range(_REPEATS + 1))
    speeds, tolls = [], []
    with _Trial(tier, _LARGE, outward) as trial:
        trial.move()  # the first makes the file
        for _ in range(_REPEATS):
            alone, (beside, seconds) = _compute(), _compute_beside(trial.move)
            speeds.append(_LARGE / seconds)
            tolls.append((1 - beside / alone) * seconds / _LARGE)
    bandwidth = statistics.median(speeds)
    latency = max(0.0, small - _SMALL / bandwidth)
    toll = max(0.0, statistics.median(tolls))
    return max(1, int(bandwidth)), int(1e9 * latency), int(1e18 * toll)


class _Trial:
    """A value that goes one way again and again, aligned as in an arena."""

    def __init__(self, tier: DiskTier, size: int, outward: bool) -> None:
        held = np.zeros(size + ADDRESS, np.uint8)
        first = -held.ctypes.data % ADDRESS
        self.value = torch.from_numpy(held[first : first + size])
        self.stay = Stay(tier, "a trial", size, tier.take(size), Copy(None))
        self.outward = outward

    def __enter__(self) -> _Trial:
        if not self.outward:
            self._go(self.stay.tier.outward, self.stay.tier.file.write, "written to")
        return self

    def __exit__(self, *_: object) -> None:
        self.stay.tier.give_back(self.stay)

    def move(self) -> None:
        """Once there, or once back."""
        tier = self.stay.tier
        if self.outward:
            self._go(tier.outward, tier.file.write, "written to")
        else:
            self._go(tier.inward, tier.file.read, "read back from")

    def _go(self, link: Link, act: Callable[[memoryview, int, Buffer], None], what: str) -> None:
        copy = Copy(self.value)
        link.ask(copy, lambda memory, buffer: act(memory, self.stay.offset, buffer))
        wait_for(self.stay, copy, what)


def _compute() -> int:
    """Rounds of operators in `_SECONDS`."""
    left, right = torch.ones(256, 256), torch.ones(1 << 18)
    product, bent = torch.empty_like(left), torch.empty_like(right)
    end, rounds = time.perf_counter() + _SECONDS, 0
    while rounds == 0 or time.perf_counter() < end:
        torch.mm(left, left, out=product)
        torch.tanh(right, out=bent)
        rounds += 1
    return rounds


def _compute_beside(move: Callable[[], None]) -> tuple[int, float]:
    """The same while another thread does ``move`` again and again; and the seconds of each."""
    over = threading.Event()

    def repeat() -> float:
        began, count = time.perf_counter(), 0
        while count == 0 or not over.is_set():
            move()
            count += 1
        return (time.perf_counter() - began) / count

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(repeat)
        rounds = _compute()
        over.set()
        return rounds, moving.result()


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _read(file: Path) -> dict[str, Any]:
    try:
        rows = read_json(file)
    except (OSError, BadFile):
        return {}
    return rows if isinstance(rows, dict) else {}


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 6 and all(type(v) is int and v >= 0 for v in row)
