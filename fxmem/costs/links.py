"""Bandwidth and latency of a tier, measured once and kept on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import cache as remember
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes  # private; 2.11 to 2.15

from ..files.store import BadFile, read_json, write_json
from ..runtime.transfer import copy_in, copy_out, tier_at, wait_in, wait_out
from ..solvers.transfer import Tier
from .table import cache_directory

_SMALL, _LARGE = 1 << 16, 1 << 23
_REPEATS = 5


def measure_tier(directory: str, cache: bool = True) -> Tier:
    """The tier in a directory: two sizes tell latency and bandwidth of each direction.

    Raises
    ------
    TransferError
        It cannot be written to.
    """
    figures = _known(directory, cache)
    return Tier(directory, *figures, capacity=shutil.disk_usage(directory).free)


@remember
def _known(directory: str, cache: bool) -> tuple[int, int, int, int]:
    file = cache_directory() / "links.json"
    way = "direct" if tier_at(directory).file.direct else "cached"
    key = f"{os.path.realpath(directory)} on device {os.stat(directory).st_dev}, {way}"
    rows = _read(file) if cache else {}
    if _is_row(rows.get(key)):
        write, read, write_latency, read_latency = rows[key]
        return write, read, write_latency, read_latency
    found = _measure(directory)
    if cache:
        with contextlib.suppress(OSError):
            write_json(file, {**_read(file), key: list(found)})
    return found


def _measure(directory: str) -> tuple[int, int, int, int]:
    """Bytes a second out and back, and nanoseconds of latency out and back."""
    # The caller may be in the midst of a trace, whose fake mode would move nothing.
    with _disable_current_modes():
        seconds = [_round_trip(directory, size) for size in (_SMALL, _LARGE)]
    found = []
    for small, large in zip(*seconds, strict=True):
        bandwidth = (_LARGE - _SMALL) / max(large - small, 1e-9)
        latency = max(0.0, small - _SMALL / bandwidth)
        found.append((max(1, int(bandwidth)), int(1e9 * latency)))
    (write, write_latency), (read, read_latency) = found
    return write, read, write_latency, read_latency


def _round_trip(directory: str, size: int) -> tuple[float, float]:
    """Median seconds out and back for ``size`` bytes."""
    value = torch.ones(size, dtype=torch.uint8)
    rows = []
    for _ in range(_REPEATS + 1):
        ticket, out = _timed(lambda: wait_out(copy_out(value, directory, "a trial"), value))
        _, back = _timed(partial(_read_back, ticket, size))
        rows.append((out, back))
        del ticket
    outs, backs = zip(*rows[1:], strict=True)  # the first makes the file
    return statistics.median(outs), statistics.median(backs)


def _read_back(ticket: torch.Tensor, size: int) -> torch.Tensor:
    return wait_in(ticket, copy_in(ticket, (size,), (1,), torch.uint8))


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def _read(file: Path) -> dict[str, Any]:
    try:
        rows = read_json(file)
    except (OSError, BadFile):
        return {}
    return rows if isinstance(rows, dict) else {}


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 4 and all(type(v) is int and v >= 0 for v in row)
