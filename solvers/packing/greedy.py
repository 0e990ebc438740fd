"""The best of several plain orders: instant, and on training steps near the bound."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from .kernels import neighbours, place, place_many
from .problem import PackingProblem, running_bytes

#: Beyond so many pairs of buffers that live at once no lists of them are made.
MOST_PAIRS = 20_000_000


@dataclass(frozen=True)
class Buffers:
    """A problem as arrays, sizes rounded up to the alignment."""

    lower: np.ndarray
    upper: np.ndarray
    size: np.ndarray
    fixed: np.ndarray  # -1: free

    @classmethod
    def of(cls, problem: PackingProblem) -> Buffers:
        """Of all the problem's buffers."""
        lower, upper, size = (
            np.array(v, np.int64) for v in (problem.lower, problem.upper, problem.size)
        )
        fixed = np.array([-1 if f is None else f for f in problem.fixed], np.int64)
        return cls(lower, upper, -(-size // problem.alignment) * problem.alignment, fixed)

    def take(self, chosen: np.ndarray) -> Buffers:
        """Some of them."""
        return Buffers(
            self.lower[chosen], self.upper[chosen], self.size[chosen], self.fixed[chosen]
        )

    def congestion(self) -> np.ndarray:
        """Of each buffer, the most bytes alive at any time of its life."""
        times, live = running_bytes(self.lower, self.upper, self.size)
        first, last = np.searchsorted(times, self.lower), np.searchsorted(times, self.upper)
        # Maxima over ranges, by doubling: level k holds those over 2**k entries.
        levels = [live]
        while 1 << len(levels) <= len(live):
            half = 1 << (len(levels) - 1)
            levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
        level = np.floor(np.log2(last - first)).astype(np.int64)
        found = np.empty(len(first), np.int64)
        for k, row in enumerate(levels):
            at = level == k
            found[at] = np.maximum(row[first[at]], row[last[at] - (1 << k)])
        return found

    def pairs(self) -> int:
        """How many ordered pairs of buffers live at one time."""
        starts, ends = np.sort(self.lower), np.sort(self.upper)
        before = np.searchsorted(starts, self.upper, "left")
        gone = np.searchsorted(ends, self.lower, "right")
        return int((before - gone - 1).sum())


def orders(buffers: Buffers) -> dict[str, np.ndarray]:
    """Plain orders in which to place buffers, by name."""
    duration, size = buffers.upper - buffers.lower, buffers.size
    congestion = buffers.congestion()
    return {
        "congestion, size": np.lexsort((-size, -congestion)),
        "congestion, duration": np.lexsort((-duration, -congestion)),
        "size": np.lexsort((buffers.lower, -size)),
        "start": np.lexsort((-size, buffers.lower)),
        "area": np.argsort(-size.astype(float) * duration, kind="stable"),
        "duration": np.lexsort((-size, -duration)),
        "end": np.lexsort((-size, -buffers.upper)),
    }


@dataclass(frozen=True)
class Placed:
    """One packing by an order."""

    height: int
    offset: np.ndarray
    order: np.ndarray
    best_gap: bool


def greedy(buffers: Buffers, bound: int, deadline: float) -> list[Placed]:
    """Packings by every order and both kinds of gap, the lowest first.

    Stops at the bound, and at the deadline once there is one.
    """
    found: list[Placed] = []
    lists = neighbours(buffers.lower, buffers.upper) if buffers.pairs() <= MOST_PAIRS else None
    for order in orders(buffers).values():
        for best_gap in (True, False):
            placed = place_in(buffers, lists, order, best_gap)
            found.append(placed)
            if placed.height <= bound or time.monotonic() > deadline:
                return sorted(found, key=lambda p: p.height)
    return sorted(found, key=lambda p: p.height)


def place_in(
    buffers: Buffers,
    lists: tuple[np.ndarray, np.ndarray] | None,
    order: np.ndarray,
    best_gap: bool,
) -> Placed:
    """Place buffers in an order."""
    offset = np.full(len(order), -1, np.int64)
    if lists is not None:
        height = place(order, buffers.size, buffers.fixed, *lists, best_gap, offset)
    else:
        height = place_many(
            order, buffers.lower, buffers.upper, buffers.size, buffers.fixed, best_gap, offset
        )
    return Placed(int(height), offset, order, best_gap)
