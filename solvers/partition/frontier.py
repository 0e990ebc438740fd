"""What recomputation can do for a stage: the best choices of its items' options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .problem import PartitionProblem

WIDTH = 512  # points of one frontier; beyond, they are thinned and the frontier is not exact


@dataclass(frozen=True, eq=False)
class Frontier:
    """Choices of which none is better than another, from the fastest to the slowest.

    Attributes
    ----------
    extra, kept, peak : arrays
        Seconds, and bytes, of each choice (of its optimistic twin in a frontier for bounds).
    parent, option : arrays
        The choice in the frontier of one item less, and the last item's option.
    """

    extra: NDArray[np.float64]
    kept: NDArray[np.int64]
    peak: NDArray[np.int64]
    parent: NDArray[np.int64]
    option: NDArray[np.int64]


class Frontiers:
    """The frontier of every stage ``start:stop``, made when asked for.

    ``optimistic`` thins so that every choice is still bounded from below.
    """

    def __init__(self, problem: PartitionProblem, optimistic: bool = False, width: int = WIDTH):
        self.problem, self.optimistic, self.width = problem, optimistic, width
        self.thinned = False  # then none is exact
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, start: int, stop: int) -> Frontier:
        if start == stop:
            none = np.zeros(1, np.int64)
            return Frontier(np.zeros(1), none, none, none, none)
        before = self.of(start, stop - 1)
        options = self.problem.items[stop - 1].options
        rows, columns = len(before.extra), len(options)
        extra = np.add.outer(before.extra, [o.extra for o in options]).ravel()
        kept = np.add.outer(before.kept, [o.kept for o in options]).ravel()
        peak = np.maximum.outer(before.peak, [o.peak for o in options]).ravel()
        parent = np.repeat(np.arange(rows), columns)
        option = np.tile(np.arange(columns), rows)
        best = _undominated(extra, kept, peak)
        found = Frontier(extra[best], kept[best], peak[best], parent[best], option[best])
        return found if len(best) <= self.width else self._thin(found)

    def _thin(self, found: Frontier) -> Frontier:
        self.thinned = True
        groups = np.array_split(np.arange(len(found.extra)), self.width)
        chosen = np.array([g[np.argmin(found.kept[g])] for g in groups])
        extra, kept, peak = (a[chosen] for a in (found.extra, found.kept, found.peak))
        if self.optimistic:
            extra = np.array([found.extra[g].min() for g in groups])
            kept = np.array([found.kept[g].min() for g in groups])
            peak = np.array([found.peak[g].min() for g in groups])
        return Frontier(extra, kept, peak, found.parent[chosen], found.option[chosen])

    def fastest(self, start: int, stop: int, in_flight: int, room: int) -> int | None:
        """Position of the fastest choice with in_flight × kept + peak within ``room``."""
        found = self.of(start, stop)
        fits = np.flatnonzero(in_flight * found.kept + found.peak <= room)
        return int(fits[0]) if len(fits) else None

    def choice(self, start: int, stop: int, position: int) -> tuple[int, ...]:
        """The option of each item."""
        options = []
        for end in range(stop, start, -1):
            found = self.of(start, end)
            options.append(int(found.option[position]))
            position = int(found.parent[position])
        return tuple(reversed(options))


def _undominated(
    extra: NDArray[np.float64], kept: NDArray[np.int64], peak: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Positions of the points that no other is at or under in all three, fastest first."""
    order = np.lexsort((peak, kept, extra))
    best: list[int] = []
    least: list[tuple[int, int]] = []  # (kept, peak) so far, none under another
    for position in order.tolist():
        k, p = int(kept[position]), int(peak[position])
        if any(a <= k and b <= p for a, b in least):
            continue
        least = [(a, b) for a, b in least if not (k <= a and p <= b)]
        least.append((k, p))
        best.append(position)
    return np.array(best, np.int64)
