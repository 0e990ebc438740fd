"""One line of search: a set of storages to move, an order for it, and prices that learn."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping

import numpy as np

from ..remat import solve as solve_remat
from ..remat.arrays import flatten
from ..remat.search import search
from ..remat.worker import Incumbent as RematIncumbent
from .incumbent import Incumbent
from .reduction import Reduced, reduce
from .refine import refine, stalls
from .skeleton import skeleton

CLOSE = 2e-3  # a gap to its bound at which the reduced problem is done
SOON = 2.0  # most seconds of one more search


class Line:
    """Moves ``tier``'s storages, and searches an order within ``inner`` bytes.

    Whatever a storage makes the processor wait is added to the price of its loads before the
    order is searched on: then it is moved where that hides, or kept.

    Attributes
    ----------
    value : tuple of (int, int)
        Bytes over the budget, and the makespan, of the best schedule that it found.
    tried : bool
        Has it begun?
    """

    def __init__(
        self,
        incumbent: Incumbent,
        tier: Mapping[int, int],
        price: Mapping[int, int],
        inner: int,
        seed: int,
    ) -> None:
        self.incumbent, self.tier, self.inner, self.seed = incumbent, tier, inner, seed
        self.price = {s: price.get(s, 1) for s in tier}
        self.value = (1 << 62, 1 << 62)
        self.tried = False
        self.sequence: tuple[int, ...] = ()
        self.waits: dict[int, int] = {}

    def begin(self, seconds: float) -> None:
        """A first order, from nothing."""
        deadline = clock.monotonic() + seconds
        reduced = reduce(self.incumbent.problem.remat, self.price)
        most = max(0.1, 0.8 * seconds)
        found = solve_remat(reduced.remat, self.inner, time_limit=most, seed=self.seed, gap=CLOSE)
        self.tried = True
        self._take(reduced, found.sequence, deadline)
        if found.interrupted:
            raise KeyboardInterrupt

    def go_on(self, deadline: float) -> None:
        """Better prices, and a search from the last order."""
        for s, wait in self.waits.items():
            self.price[s] += wait
        reduced = reduce(self.incumbent.problem.remat, self.price)
        remat = RematIncumbent(flatten(reduced.remat), self.inner, reduced.remat.base_time)
        self.seed += 1
        start = np.array(self.sequence, np.int64)
        remat.offer(start)
        seconds = min(SOON, deadline - clock.monotonic())
        until = clock.monotonic() + 0.8 * seconds
        search(remat, [start], 0.0, until, self.seed, False, seconds, CLOSE)
        best = remat.least if remat.sequence is None else remat.sequence
        self._take(reduced, tuple(int(v) for v in best), deadline)

    def _take(self, reduced: Reduced, sequence: tuple[int, ...], deadline: float) -> None:
        incumbent = self.incumbent
        plan = skeleton(incumbent.problem.remat, reduced, sequence)
        deadline = min(deadline, clock.monotonic() + SOON)
        _, placed = refine(incumbent.problem, plan, self.tier, incumbent.budget, deadline)
        replay = incumbent.offer(placed[0], "reduction")
        self.sequence, self.waits = sequence, stalls(placed)
        self.value = min(self.value, (max(0, replay.peak - incumbent.budget), replay.makespan))
