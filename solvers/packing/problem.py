"""Buffers that live for a time each, and what a packing of them looks like."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

#: Sums of sizes must stay well inside 64 bits.
MOST_BYTES = 1 << 60


@dataclass(frozen=True)
class PackingProblem:
    """Buffers to lay out in one arena; two that live at once may not overlap.

    Attributes
    ----------
    lower, upper : tuple of int
        Buffer ``i`` lives at the times ``t`` with ``lower[i] <= t < upper[i]``.
    size : tuple of int
        Bytes, above zero.
    alignment : int
        Every offset is a multiple of it.
    fixed : tuple of (int or None)
        Offsets that are given; None where one is to be chosen. Empty: all are.

    Raises
    ------
    ValueError
        Lengths differ, a buffer has no size or no time, an offset is not aligned.
    """

    lower: Sequence[int]
    upper: Sequence[int]
    size: Sequence[int]
    alignment: int = 1
    fixed: Sequence[int | None] = field(default=())

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "size"):
            object.__setattr__(self, name, tuple(int(v) for v in getattr(self, name)))
        fixed = tuple(self.fixed) or (None,) * len(self.size)
        object.__setattr__(self, "fixed", fixed)
        if not len(self.lower) == len(self.upper) == len(self.size) == len(fixed):
            raise ValueError("lower, upper, size and fixed must have one entry for each buffer.")
        if self.alignment < 1:
            raise ValueError(f"alignment is {self.alignment}; it must be at least 1.")
        for i, (low, high, size, offset) in enumerate(
            zip(self.lower, self.upper, self.size, fixed, strict=True)
        ):
            if size < 1:
                raise ValueError(f"buffer {i} has size {size}; leave out buffers without bytes.")
            if high <= low:
                raise ValueError(f"buffer {i} lives from {low} to {high}: it must live for a time.")
            if offset is not None and (offset < 0 or offset % self.alignment):
                raise ValueError(f"buffer {i} is fixed at {offset}, no multiple of the alignment.")
        if sum(self.size) + len(self.size) * self.alignment > MOST_BYTES:
            raise ValueError("the sizes add up to more than 2**60; give them in larger units.")

    @property
    def count(self) -> int:
        """Number of buffers."""
        return len(self.size)

    @cached_property
    def lower_bound(self) -> int:
        """Largest sum of the sizes that live at once: no arena is smaller."""
        lower, upper, size = (np.array(v, np.int64) for v in (self.lower, self.upper, self.size))
        return int(running_bytes(lower, upper, size)[1].max(initial=0))

    @classmethod
    def read_csv(cls, path: str | Path, alignment: int = 1) -> PackingProblem:
        """Read a table with columns ``lower``, ``upper`` and ``size``, as minimalloc's are."""
        with open(path, newline="") as text:
            rows = list(csv.DictReader(text))
        try:
            lower, upper, size = ([int(row[c]) for row in rows] for c in ("lower", "upper", "size"))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no packing instance: it needs columns lower, upper and size of whole "
                f"numbers ({error!r})."
            ) from error
        return cls(lower, upper, size, alignment)


@dataclass(frozen=True)
class PackingSolution:
    """Where each buffer lies.

    Attributes
    ----------
    offset : tuple of int
        Empty if none was found.
    height : int
        Bytes of the arena.
    lower_bound : int
        No arena is smaller.
    status : str
        ``"optimal"``, ``"feasible"``, ``"infeasible"`` (proved: none fits the capacity) or
        ``"unknown"`` (none was found that does; ``offset`` is the lowest that was).
    """

    offset: tuple[int, ...]
    height: int
    lower_bound: int
    status: str


def running_bytes(
    lower: np.ndarray, upper: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times at which something changes, ascending, and the bytes alive from each on."""
    times, place = np.unique(np.concatenate([lower, upper]), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, place[: len(size)], size)
    np.add.at(change, place[len(size) :], -size)
    return times, np.cumsum(change)
