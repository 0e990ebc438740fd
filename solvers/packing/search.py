"""Many resumable searches side by side: capacities, orderings, and the large buffers first.

Which ordering finds a packing soon is not known beforehand and differs a thousandfold, so each
search gets a slice in turn, on as many threads as there are, and slices double with every round:
all together take at most a few times as long as the best one alone.
"""

from __future__ import annotations

import os
import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, product, repeat

import numpy as np

from .arrays import Buffers
from .explore import FAILED, RUNNING, SOLVED, explore
from .greedy import Placed, fill
from .incumbent import Incumbent
from .problem import PackingProblem
from .state import State, begin, blank

ORDERS = (
    ("busiest", "width", "area"),
    ("width", "area", "busiest"),
    ("busiest", "area", "width"),
    ("area", "width", "busiest"),
)
# A buffer is large from these shares of the height on; on training steps the first does best.
LARGE = (0.001, 0.002, 0.004, 0.0005, 0.0)
MOST = 3_000  # buffers in one search: its stack grows with their square
MOST_PAIRS = 6_000_000  # that meet
# Nodes of the first slice, on top of one placement of each buffer.
FIRST_SLICE = 500
# Levels by other shares, between these, are tried with so many nodes each.
FRESH_LEAST, FRESH_MOST, FRESH_SLICE = 0.0003, 0.006, 2_000
_CHUNK = 500_000  # buffers looked at between two looks at the clock, about
# Shares of the gap between what is proved and what is found at which to search at one time.
_TARGETS = (0.0, 0.15, 0.4, 0.7)
_NEAR = 0.05  # a search so near to such a share goes on in its place
Stop = Callable[[], bool]
Key = tuple[int, int, int]  # level, capacity, ordering


def cores() -> int:
    """Cores that this process may use, 8 at most."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)


@dataclass(frozen=True)
class Level:
    """The buffers of some size.

    Attributes
    ----------
    large : Buffers
        What is searched; the rest fills the gaps.
    chosen : int64[k]
        Which of all buffers those are.
    start : State
        What searches of them begin with.
    """

    large: Buffers
    chosen: np.ndarray
    start: State


@dataclass
class Search:
    """One search for a packing of a level's buffers below one capacity."""

    level: Level
    capacity: int
    order: tuple[str, ...]
    state: State | None = None
    status: int = RUNNING

    def run(self, nodes: int, stop: Stop) -> None:
        """Search on until so many nodes are visited, or ``stop``."""
        if self.state is None:
            self.state = begin(self.level.start, self.level.large, self.capacity, self.order)
            nodes += self.level.large.count
        chunk = max(50, _CHUNK // self.level.large.count)
        while nodes > 0 and self.status == RUNNING and not stop():
            self.status = explore(self.state, min(chunk, nodes))
            nodes -= chunk

    def packing(self, buffers: Buffers, stop: Stop) -> Placed | None:
        """The packing that was found, small buffers filled in; higher if they do not fit."""
        assert self.state is not None
        given, chosen = np.full(buffers.count, -1, np.int64), self.level.chosen
        given[chosen] = self.state.buffer["offset"] * self.level.large.unit // buffers.unit
        name = f"search by {', '.join(self.order)}"
        width = buffers.upper - buffers.lower
        if len(chosen) == buffers.count:
            return Placed.of(name, buffers, given)
        best: Placed | None = None
        for by in (buffers.size, buffers.size * width):
            for tightest in (True, False):
                placed = fill(buffers, np.argsort(-by, kind="stable"), given, tightest, stop)
                if placed is None:
                    return best
                found = Placed.of(name, buffers, placed)
                if best is None or found.height < best.height:
                    best = found
                if best.height <= self.capacity:
                    return best
        return best


def levels(buffers: Buffers, height: int) -> list[Level]:
    """Large buffers alone, and all; left out: too many to search, and hardly fewer than others."""
    found: dict[float, Level] = {}
    last = 1 << 62
    for share in sorted(LARGE):
        chosen = np.flatnonzero(buffers.size * buffers.unit >= share * height)
        if not len(chosen) or len(chosen) > MOST:
            continue
        if len(chosen) > 0.95 * last:
            continue
        last = len(chosen)
        large = _subset(buffers, chosen) if len(chosen) < buffers.count else buffers
        if large.intervals.pairs() <= MOST_PAIRS:
            found[share] = Level(large, chosen, blank(large))
    return [found[share] for share in LARGE if share in found]


def _subset(buffers: Buffers, chosen: np.ndarray) -> Buffers:
    """The problem without the other free buffers."""
    whole = buffers.problem
    free = np.zeros(whole.count, np.bool_)
    free[buffers.index] = True
    free[buffers.index[chosen]] = False
    kept = np.flatnonzero(~free)

    def take(values: Iterable[int]) -> list[int]:
        return np.array(tuple(values), np.int64)[kept].tolist()

    problem: PackingProblem = replace(
        whole,
        lower=take(whole.lower),
        upper=take(whole.upper),
        size=take(whole.size),
        fixed=take(whole.offsets_given),
    )
    large = Buffers.of(problem)
    assert large is not None
    return large


def search(
    buffers: Buffers, incumbent: Incumbent, deadline: float, capacity: int | None = None
) -> None:
    """Lower the incumbent until it is done or the deadline.

    Parameters
    ----------
    buffers : Buffers
    incumbent : Incumbent
        Updated in place.
    deadline : float
        By `time.monotonic`.
    capacity : int, optional
        Decide this capacity alone; else the lowest packing is sought.
    """
    parts = levels(buffers, incumbent.best.height)
    unit = _height_unit(buffers)
    searches: dict[Key, Search] = {}
    nodes = FIRST_SLICE
    fresh = _fresh(buffers, incumbent.best.height)

    def late() -> bool:
        return incumbent.done or clock.monotonic() > deadline

    def run(job: Search, slice_: int) -> None:
        def over() -> bool:
            return late() or not incumbent.bound <= job.capacity < incumbent.best.height

        if over():
            return

        job.run(slice_, over)
        if job.status == SOLVED:
            incumbent.offer(job.packing(buffers, late))
        elif job.status == FAILED:
            # What does not fit without the small ones does not fit with them.
            incumbent.prove(job.capacity, unit)

    with ThreadPoolExecutor(cores()) as pool:

        def run_all(jobs: Sequence[Search], slice_: int) -> None:
            for _ in pool.map(run, jobs, repeat(slice_)):
                pass

        stuck = 0
        while stuck < len(parts) and not late():
            for level, part in enumerate(parts):
                began = clock.monotonic()
                goals = [capacity] if capacity is not None else _goals(incumbent, unit, searches)
                for key in [key for key in searches if key[1] not in goals]:
                    del searches[key]
                for goal, order in product(goals, range(len(ORDERS))):
                    if (level, goal, order) not in searches:
                        searches[level, goal, order] = Search(part, goal, ORDERS[order])
                jobs = [searches[level, *rest] for rest in product(goals, range(len(ORDERS)))]
                jobs = [job for job in jobs if job.status == RUNNING]
                stuck = 0 if jobs else stuck + 1
                run_all(jobs, nodes)
                # As long again: whether the small ones fit is luck, and each level draws anew.
                until = 2 * clock.monotonic() - began
                while fresh is not None and clock.monotonic() < until and not late():
                    part, stuck = next(fresh), 0
                    goals = [capacity] if capacity is not None else _goals(incumbent, unit, ())
                    for goal in goals:
                        tries = [Search(part, goal, order) for order in ORDERS]
                        run_all(tries, FRESH_SLICE)
            nodes *= 2


def _fresh(buffers: Buffers, height: int) -> Iterator[Level] | None:
    """Levels of other shares without end; None where there are no small buffers."""
    shares = FRESH_LEAST * (FRESH_MOST / FRESH_LEAST) ** (0.618 * np.arange(1, 1000) % 1)
    sizes = buffers.size * buffers.unit / height
    chosen = [np.flatnonzero(sizes >= share) for share in shares]
    able = [c for c in chosen if 0 < len(c) < min(buffers.count, MOST + 1)]
    if not able:
        return None
    return (_level(buffers, each) for each in cycle(able))


def _level(buffers: Buffers, chosen: np.ndarray) -> Level:
    large = _subset(buffers, chosen) if len(chosen) < buffers.count else buffers
    return Level(large, chosen, blank(large))


def _height_unit(buffers: Buffers) -> int:
    """Bytes of which the height of any packing worth looking at is a multiple."""
    size = np.array(buffers.problem.size, np.int64)
    return int(np.gcd(buffers.unit, np.gcd.reduce(size)))


def _goals(incumbent: Incumbent, unit: int, searches: Iterable[Key]) -> list[int]:
    """Capacities to search at: spread between what is proved and what is found."""
    low, high = incumbent.bound, incumbent.best.height
    under_way = {goal for _, goal, _ in searches if low <= goal < high}
    goals: set[int] = set()
    for share in _TARGETS:
        goal = min(high - unit, low + int(share * (high - low)) // unit * unit)
        nearest = min(under_way, key=lambda g: (abs(g - goal), g), default=goal)
        if abs(nearest - goal) <= _NEAR * (high - low):
            goal = nearest
        if goal >= low:
            goals.add(goal)
    return sorted(goals)
