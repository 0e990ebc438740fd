"""A problem as flat integer arrays, in units, the form that the numba kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from .intervals import Intervals
from .problem import FREE, PackingProblem


@dataclass(frozen=True)
class Buffers:
    """The free buffers of some size, measured in units of which all offsets are multiples.

    In a packing that nothing can be moved down in, every offset is a sum of sizes, each rounded
    up to the alignment, or such a sum above a fixed buffer; so all are multiples of one unit.

    Attributes
    ----------
    problem : PackingProblem
    index : int64[n]
        Number of each buffer in the problem.
    unit : int
        Bytes.
    size : int64[n]
        Rounded up.
    lower, upper : int64[n]
        Life of each.
    intervals : Intervals
        Sections of the free buffers alone.
    gap_at : int64[n + 1]
        The ranges that fixed buffers bar buffer ``i`` from are
        ``gaps[gap_at[i]:gap_at[i + 1]]``.
    gaps : int64[..., 2]
        Bottom and top, ascending for each buffer.
    """

    problem: PackingProblem
    index: np.ndarray
    unit: int
    size: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    intervals: Intervals
    gap_at: np.ndarray
    gaps: np.ndarray

    @classmethod
    def of(cls, problem: PackingProblem) -> Buffers | None:
        """Those of ``problem``; None where no buffer is left to place."""
        size, fixed = np.array(problem.size, np.int64), np.array(problem.fixed, np.int64)
        index = np.flatnonzero((fixed == FREE) & (size > 0))
        if not len(index):
            return None
        lower, upper = np.array(problem.lower, np.int64), np.array(problem.upper, np.int64)
        rounded = -(-size // problem.alignment) * problem.alignment
        given = np.flatnonzero((fixed != FREE) & (size > 0))
        measures = [rounded[index], rounded[given], fixed[given]]
        unit = int(np.gcd.reduce(np.concatenate([*measures, [0]])))
        given = given[np.argsort(fixed[given], kind="stable")]
        barred = [
            given[(lower[given] < upper[i]) & (upper[given] > lower[i])] if len(given) else given
            for i in index
        ]
        rows = np.array(list(chain.from_iterable(barred)), np.int64)
        gaps = np.stack([fixed[rows], fixed[rows] + rounded[rows]], axis=1) // unit
        gap_at = np.concatenate([[0], np.cumsum([len(row) for row in barred])])
        begin, end = lower[index], upper[index]
        return cls(
            problem, index, unit, rounded[index] // unit, begin, end,
            Intervals.of(begin, end), gap_at.astype(np.int64), gaps,
        )  # fmt: skip

    @property
    def count(self) -> int:
        """Number of buffers to place."""
        return len(self.index)

    @cached_property
    def near(self) -> tuple[np.ndarray, np.ndarray]:
        """Who meets whom: buffer ``i`` meets ``who[at[i]:at[i + 1]]``, as ``(at, who)``."""
        return neighbours(self.intervals.first, self.intervals.last)

    def limit(self, capacity: int) -> np.ndarray:
        """The highest top in units that each buffer may have below ``capacity`` bytes.

        The bytes by which a size is rounded up may stand out.
        """
        size = np.array(self.problem.size, np.int64)[self.index]
        return (capacity - size) // self.unit + self.size

    def offsets(self, placed: np.ndarray) -> tuple[int, ...]:
        """Offsets in bytes of all the problem's buffers from those in units of the free ones."""
        offset = np.maximum(np.array(self.problem.fixed, np.int64), 0)
        offset[self.index] = placed * self.unit
        return tuple(offset.tolist())


def neighbours(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each interval those that share a point with it, as ``(at, who)``."""
    order = np.argsort(first, kind="stable")
    starts = first[order]
    until = np.searchsorted(starts, last)  # of those that start before i ends ...
    rows = [order[:end][last[order[:end]] > begin] for begin, end in zip(first, until, strict=True)]
    rows = [row[row != i] for i, row in enumerate(rows)]  # ... those that end after it starts
    at = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return at, np.concatenate(rows) if rows else np.zeros(0, np.int64)


def height(problem: PackingProblem, offset: tuple[int, ...]) -> int:
    """The highest top, in bytes."""
    return max((at + size for at, size in zip(offset, problem.size, strict=True)), default=0)
