"""The least peak: annealing whose budget follows the peak down."""

from __future__ import annotations

import math
import time as clock
from concurrent.futures import ThreadPoolExecutor

from .anneal import TRIED
from .search import finish
from .state import OVER
from .worker import Incumbent, Worker

# Hotter than a search for speed, and time hardly counts: most steps out of a dead end first make
# the schedule much longer. Temperatures in mean durations of an operator.
HOT, COLD, TIME_WEIGHT = 3.0, 0.06, 0.02

MARGIN = 0.97
MOST_ROUNDS = 120_000  # about half a second


def squeeze(
    incumbent: Incumbent,
    floor: int,
    goal: int,
    deadline: float,
    seed: int,
    fixed: bool,
    moves: int = 1 << 60,
    margin_until: float = 0.0,
    threads: int = 2,
) -> None:
    """Lower the incumbent's least peak to ``goal``, or until time runs out.

    The budget is set a little under the peak, less and less so as it fails. The path depends
    on the seed and on where it begins; ``goal``, ``deadline`` and ``moves`` only end it.

    Parameters
    ----------
    incumbent : Incumbent
        Updated in place, also if the search is interrupted.
    floor, goal : int
        Peak that cannot be improved on, and peak that is enough.
    deadline : float
        By `time.monotonic`.
    fixed : bool
        First runs keep the given order.
    moves : int
        Moves of each thread after which to end.
    margin_until : float
        Until then go on below ``goal``, down to `MARGIN` of it: from a schedule that is just
        within its budget a search for speed finds no way on.
    """
    a = incumbent.a
    mean = max(1.0, float(a.op["time"].sum()) / max(1, len(a.op)))
    capacity = 6 * len(a.op) + 64
    share, rounds, turn = 0.05, 20_000, 0
    with ThreadPoolExecutor(threads) as pool:
        workers = [Worker(a, capacity, 1.0, seed * 31 + i, fixed) for i in range(threads)]
        while incumbent.least_peak > floor and share > 1e-4:
            margin = MARGIN if clock.monotonic() < margin_until else 1.0
            if incumbent.least_peak <= goal * margin:
                return
            if clock.monotonic() > deadline or workers[0].record[TRIED] > moves:
                return
            target = max(floor, int(incumbent.least_peak * (1 - share)))
            for worker in workers:
                worker.seed += turn * 977
                worker.start(incumbent.least, target)
                over = max(1, worker.state.meta[OVER])
                worker.weight = 0.6 * mean * len(a.op) / over
                worker.heaviest = 1e6 * worker.weight
            turn += 1
            # Rounds are not cut short, only short: what they end in can be found again.
            jobs = [
                pool.submit(
                    worker.run, rounds, HOT * mean, COLD * mean, TIME_WEIGHT, True, math.inf
                )
                for worker in workers
            ]
            finish(jobs, workers, incumbent)
            success = incumbent.least_peak <= target
            share = share * 1.3 if success else share / 2
            rounds = rounds if success else min(MOST_ROUNDS, rounds * 3 // 2)
