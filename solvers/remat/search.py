"""Annealing on several threads, in rounds that double, from the best schedule known.

Rounds are counted, not timed, so equal seeds give equal answers unless time runs out.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from .anneal import BEST_LENGTH, BEST_TIME, FEASIBLE, anneal
from .arrays import Arrays
from .evaluate import evaluate
from .state import LENGTH, OVER, empty_state, load, peak_of

CHUNK = 20_000  # moves between two looks at the clock
Progress = Callable[[float, int, int, int], None]


@dataclass
class Incumbent:
    """The best schedule so far.

    Attributes
    ----------
    sequence : int64 array or None
        Fastest schedule within the budget; None: none known.
    time : int
        Its total time.
    least : int64 array or None
        Schedule of least peak, within the budget or not.
    least_peak : int
        Its peak in bytes.
    """

    a: Arrays
    budget: int
    bound: int
    progress: Progress | None = None
    began: float = field(default_factory=clock.monotonic)
    sequence: np.ndarray | None = None
    time: int = 1 << 62
    least: np.ndarray | None = None
    least_peak: int = 1 << 62

    def offer(self, sequence: np.ndarray) -> bool:
        """Take ``sequence`` if it is better; True where the fastest schedule changed."""
        total, peak, over = evaluate(self.a, sequence, self.budget)
        if total < 0:
            return False
        if peak < self.least_peak:
            self.least, self.least_peak = sequence.copy(), peak
        if over == 0 and total < self.time:
            self.sequence, self.time = sequence.copy(), total
            if self.progress:
                self.progress(clock.monotonic() - self.began, total, peak, self.bound)
            return True
        return False


class Worker:
    """One thread's state, weight and random seed."""

    def __init__(self, a: Arrays, capacity: int, weight: float, seed: int, fixed: bool) -> None:
        self.a, self.weight, self.seed, self.fixed = a, weight, seed, fixed
        self.state = empty_state(a, capacity)
        self.best = np.zeros(capacity + 4, np.int64)
        self.record = np.zeros(8, np.int64)

    def start(self, sequence: np.ndarray, budget: int) -> None:
        """Begin at ``sequence``."""
        if not load(self.a, self.state, sequence, budget):
            raise ValueError("a start of the search is not a valid schedule")
        self.record[BEST_TIME] = -1

    def run(
        self, rounds: int, hot: float, cold: float, alpha: float, stop: bool, deadline: float
    ) -> None:
        """``rounds`` moves from ``hot`` to ``cold``, or fewer if the deadline passes."""
        done = 0
        while done < rounds and clock.monotonic() < deadline:
            now = min(CHUNK, rounds - done)
            warm = hot * (cold / hot) ** (done / rounds)
            cool = hot * (cold / hot) ** ((done + now) / rounds)
            self.seed = (self.seed * 1103515245 + 12345) % (1 << 31)
            self.weight = anneal(
                self.a, self.state, now, warm, cool, alpha, self.weight, self.seed,
                self.fixed, stop, self.best, self.record,
            )  # fmt: skip
            done += now
            if stop and self.record[BEST_TIME] >= 0:
                return

    def current(self) -> np.ndarray:
        """The schedule that was accepted last."""
        return self.state.step["seq"][: self.state.meta[LENGTH]].copy()

    def found(self) -> np.ndarray | None:
        """The fastest schedule within the budget since `start`."""
        if self.record[BEST_TIME] < 0:
            return None
        return self.best[: self.record[BEST_LENGTH]].copy()


def _run_all(pool: ThreadPoolExecutor, workers: list[Worker], *arguments: object) -> None:
    for job in [pool.submit(worker.run, *arguments) for worker in workers]:
        job.result()


def search(
    incumbent: Incumbent,
    starts: list[np.ndarray],
    price: float,
    deadline: float,
    seed: int,
    fixed: bool,
    threads: int = 2,
    first_rounds: int = 200_000,
    patience: int = 2,
) -> None:
    """Shorten the incumbent's time within its budget until the deadline.

    Parameters
    ----------
    incumbent : Incumbent
        Updated in place, also if the search is interrupted.
    starts : list of sequences
        Where the threads begin, best first.
    price : float
        A guess of what a byte is worth in time.
    deadline : float
        By `time.monotonic`.
    fixed : bool
        First runs keep the given order.
    first_rounds : int
        Moves of the first round on each thread; each round after it takes twice as many.
    patience : int
        Rounds without an improvement of 0.02 % after which to stop.
    """
    a = incumbent.a
    mean = max(1.0, float(a.op["time"].sum()) / max(1, len(a.op)))
    price = price or float(a.op["time"].sum()) / max(1.0, float(a.storage["size"].sum()))
    capacity = 4 * len(a.op) + 64
    workers = [
        Worker(a, capacity, 0.3 * price, seed * 7919 + 104729 * i + 1, fixed)
        for i in range(threads)
    ]
    for i, worker in enumerate(workers):
        worker.start(starts[min(i, len(starts) - 1)], incumbent.budget)
    rounds, stale = first_rounds, 0
    hot = mean
    with ThreadPoolExecutor(threads) as pool:
        while clock.monotonic() < deadline and incumbent.time > incumbent.bound:
            before = incumbent.time
            _run_all(pool, workers, rounds, hot, 0.01 * mean, 1.0, False, deadline)
            for worker in workers:
                found = worker.found()
                incumbent.offer(worker.current())
                if found is not None:
                    incumbent.offer(found)
            if incumbent.sequence is not None:
                stale = stale + 1 if incumbent.time > before * 0.9998 else 0
                if stale >= patience:
                    break
                for worker in workers:
                    worker.start(incumbent.sequence, incumbent.budget)
            rounds *= 2
            hot = max(0.3 * mean, hot * 0.8)


def squeeze(
    incumbent: Incumbent,
    floor: int,
    deadline: float,
    seed: int,
    fixed: bool,
    goal: int = 0,
    threads: int = 2,
) -> None:
    """Lower the incumbent's least peak, down to ``max(floor, goal)`` or until the deadline.

    The budget is set a little under the peak, less and less so as it fails.
    """
    a = incumbent.a
    mean = max(1.0, float(a.op["time"].sum()) / max(1, len(a.op)))
    capacity = 6 * len(a.op) + 64
    goal = max(floor, goal)
    share, rounds, turn = 0.05, 50_000, 0
    with ThreadPoolExecutor(threads) as pool:
        workers = [Worker(a, capacity, 1.0, seed * 31 + i, fixed) for i in range(threads)]
        while clock.monotonic() < deadline and incumbent.least_peak > goal and share > 1e-4:
            target = max(goal, int(incumbent.least_peak * (1 - share)))
            for worker in workers:
                worker.seed += turn * 977
                worker.start(incumbent.least, target)
                over = max(1, worker.state.meta[OVER])
                worker.weight = 30.0 * mean * len(a.op) / 50 / over
            turn += 1
            _run_all(pool, workers, rounds, mean, 0.02 * mean, 0.05, True, deadline)
            success = False
            for worker in workers:
                found = worker.found()
                if found is not None and peak_of(a, worker.state) <= target:
                    success = True
                incumbent.offer(worker.current() if found is None else found)
            share, rounds = (share * 1.3, rounds) if success else (share / 2, rounds * 5 // 4)


__all__ = ["FEASIBLE", "Incumbent", "search", "squeeze"]
