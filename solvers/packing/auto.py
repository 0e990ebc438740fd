"""`pack`: plain orders first, then annealing of the best ones while there is time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .greedy import MOST_PAIRS, Buffers, Placed, greedy, place_in
from .kernels import climb, neighbours
from .problem import PackingProblem, PackingSolution

# Buffers below this share of the bound are placed last, into what gaps there are.
_SMALL = 0.002
_THREADS = 2
_STARTS = 3
_HEAT = 0.01
_MOVES = 64  # of the first round; later ones take as many as fit in half a second


def pack(
    problem: PackingProblem,
    capacity: int | None = None,
    time_limit: float = 60.0,
    seed: int = 0,
) -> PackingSolution:
    """Choose an offset for every buffer.

    Parameters
    ----------
    problem : PackingProblem
    capacity : int, optional
        Any packing up to this height will do; None: as low as can be found.
    time_limit : float
        Seconds.
    seed : int

    Returns
    -------
    PackingSolution
    """
    deadline = time.monotonic() + time_limit
    bound = problem.lower_bound
    if not problem.count:
        return PackingSolution((), 0, 0, "optimal")
    if capacity is not None and capacity < bound:
        return PackingSolution((), 0, bound, "infeasible")
    target = bound if capacity is None else capacity
    buffers = Buffers.of(problem)
    found = greedy(buffers, target, deadline)
    best = found[0]
    if best.height > target and time.monotonic() < deadline:
        best = _anneal(buffers, found, target, deadline, seed)
    # What is at the top need not be rounded up.
    height = max(o + s for o, s in zip(best.offset, problem.size, strict=True))
    if height <= bound:
        status = "optimal"
    elif capacity is None or height <= capacity:
        status = "feasible"
    else:
        status = "unknown"
    return PackingSolution(tuple(best.offset.tolist()), int(height), bound, status)


def _anneal(
    buffers: Buffers, found: list[Placed], target: int, deadline: float, seed: int
) -> Placed:
    """Anneal the orders of the large buffers; the small ones then fill the gaps."""
    large = (buffers.size >= _SMALL * target) | (buffers.fixed >= 0)
    if not large.any() or buffers.pairs() > MOST_PAIRS:
        return found[0]
    search = _Search(buffers, large, found, target, seed)
    moves, rounds = _MOVES, 0
    with ThreadPoolExecutor(_THREADS) as threads:
        while search.best.height > target and time.monotonic() < deadline:
            begun = time.monotonic()
            turns = range(_THREADS * rounds, _THREADS * (rounds + 1))
            done = max(threads.map(search.run, turns, [moves] * _THREADS))
            now = time.monotonic()
            pace = done / max(now - begun, 1e-3)
            moves = max(8, min(4 * moves, int(pace * min(0.5, max(0.0, deadline - now)))))
            rounds += 1
    return search.best


class _Search:
    """The orders so far, and the lowest packing that came of any."""

    def __init__(
        self, buffers: Buffers, large: np.ndarray, found: list[Placed], target: int, seed: int
    ) -> None:
        self.buffers, self.target, self.seed = buffers, target, seed
        self.index = np.flatnonzero(large)
        self.large = buffers.take(large)
        self.near_large, self.near = (
            neighbours(b.lower, b.upper) for b in (self.large, self.buffers)
        )
        number = np.cumsum(large) - 1  # of a large buffer among the large ones
        self.starts = found[:_STARTS]
        self.orders = [number[p.order[large[p.order]]] for p in self.starts]
        self.small = [p.order[~large[p.order]] for p in self.starts]
        self.best = found[0]

    def run(self, turn: int, moves: int) -> int:
        """Anneal one of the orders; returns how many moves were made."""
        which = turn % len(self.orders)
        _, order, done = climb(
            self.orders[which].copy(),
            self.large.size,
            self.large.fixed,
            *self.near_large,
            self.starts[which].best_gap,
            self.target,
            moves,
            self.seed + turn,
            _HEAT,
        )
        self.orders[which] = order
        whole = np.concatenate([self.index[order], self.small[which]])
        for best_gap in (True, False):
            placed = place_in(self.buffers, self.near, whole, best_gap)
            if placed.height < self.best.height:
                self.best = placed
        return int(done)
