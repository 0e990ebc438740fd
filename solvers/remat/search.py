"""Annealing on several threads, in rounds that grow, from the best schedule known.

Rounds are counted, not timed, so equal seeds give equal answers unless time runs out.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .anneal import BEST_LENGTH, BEST_TIME, RECORD, anneal
from .arrays import Arrays
from .evaluate import evaluate
from .state import LENGTH, OVER, empty_state, load

CHUNK = 10_000  # moves between two looks at the clock
# First temperatures of rounds, in mean durations of an operator; and where nothing but a start
# squeezed under the budget whatever its time leads on, which is far from any good schedule.
HOT = (0.3, 0.03, 1.0, 0.1)
HOTTER = (1.0, 0.3, 3.0, 0.1)
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
    least : int64 array
        Schedule of least peak, within the budget or not; empty: none known.
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
    least: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
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
        self.record = np.zeros(RECORD, np.int64)
        self.record[BEST_TIME] = -1
        self.halt = False

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
        while done < rounds and clock.monotonic() < deadline and not self.halt:
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


# A plan this close to its bound is not worth more seconds than these: timings vary by more.
_CLOSE = 2e-3
_ENOUGH_SECONDS = 2.0


def search(
    incumbent: Incumbent,
    starts: list[np.ndarray],
    price: float,
    deadline: float,
    seed: int,
    fixed: bool,
    squeezed: bool = False,
    threads: int = 2,
    first_rounds: int = 100_000,
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
    squeezed : bool
        The first start was made to fit by `squeeze`; no other fits.
    first_rounds : int
        Moves of the first round on each thread; each round after it takes half as many again.
    patience : int
        Rounds without an improvement of 0.02 % after which to stop.
    """
    a = incumbent.a
    mean = max(1.0, float(a.op["time"].sum()) / max(1, len(a.op)))
    price = max(price, 0.1 * float(a.op["time"].sum()) / max(1.0, float(a.storage["size"].sum())))
    capacity = 4 * len(a.op) + 64
    workers = [
        Worker(a, capacity, 0.3 * price, seed * 7919 + 104729 * i + 1, fixed)
        for i in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:
        ends = _scout(pool, workers, incumbent, starts, mean, price, deadline)
        within = [end for end in ends if end.over == 0]
        hotter = squeezed and all(end.start == 0 for end in within)
        temperatures = HOTTER if hotter else HOT
        ranked = within or ends
        heads = [ranked[min(i, len(ranked) - 1)].sequence for i in range(threads)]
        for worker, head in zip(workers, heads, strict=False):
            worker.start(head, incumbent.budget)
        rounds, stale, turn = first_rounds, 0, 0
        enough = clock.monotonic() + _ENOUGH_SECONDS
        while clock.monotonic() < deadline and incumbent.time > incumbent.bound:
            before = incumbent.time
            jobs = []
            for i, worker in enumerate(workers):
                # One thread looks far, the other near; they change places each round.
                hot = temperatures[(turn + i) % len(temperatures)] * mean
                jobs.append(pool.submit(worker.run, rounds, hot, hot / 30, 1.0, False, deadline))
            finish(jobs, workers, incumbent)
            if incumbent.sequence is not None:
                stale = stale + 1 if incumbent.time > before * 0.9998 else 0
                # Worth more patience where the bound leaves much room, none where little.
                room = incumbent.time / max(1, incumbent.bound) - 1
                if room < 1e-4 or stale >= (patience if room > _CLOSE else 1) + min(8, 400 * room):
                    break
                if room < _CLOSE and clock.monotonic() > enough:
                    break
                for worker in workers:
                    own = worker.found()
                    # The far-looking thread goes on from its own schedule if that is close.
                    if own is None or turn % 2 or worker.record[BEST_TIME] > 1.01 * incumbent.time:
                        own = incumbent.sequence
                    worker.start(own, incumbent.budget)
            rounds = rounds * 3 // 2
            turn += 1


def finish(jobs: list[Future], workers: list[Worker], incumbent: Incumbent) -> None:
    """Let all jobs end and offer what they found, also when interrupted."""
    try:
        for job in jobs:
            job.result()
    except KeyboardInterrupt:
        for worker in workers:
            worker.halt = True
        wait(jobs)
        raise
    finally:
        for worker in workers:
            found = worker.found()
            incumbent.offer(worker.current())
            if found is not None:
                incumbent.offer(found)


class End(NamedTuple):
    """Where a brief search from start number ``start`` led."""

    over: int
    time: int
    start: int
    sequence: np.ndarray


def _scout(
    pool: ThreadPoolExecutor,
    workers: list[Worker],
    incumbent: Incumbent,
    starts: list[np.ndarray],
    mean: float,
    price: float,
    deadline: float,
    most: int = 8,
    rounds: int = 40_000,
) -> list[End]:
    """Search briefly from each start; the ends, best first."""
    ends = []
    for first in range(0, min(most, len(starts)), len(workers)):
        jobs = []
        busy = []
        for worker, start in zip(workers, starts[first : first + len(workers)], strict=False):
            worker.start(start, incumbent.budget)
            worker.weight = price
            busy.append(worker)
            jobs.append(
                pool.submit(worker.run, rounds, 0.1 * mean, 0.003 * mean, 1.0, False, deadline)
            )
        finish(jobs, busy, incumbent)
        for i, worker in enumerate(busy):
            found = worker.found()
            if found is None:
                over = max(1, int(worker.state.meta[OVER]))
                ends.append(End(over, 0, first + i, worker.current()))
            else:
                ends.append(End(0, int(worker.record[BEST_TIME]), first + i, found))
    return sorted(ends, key=lambda end: end[:3])
