"""The best schedule so far, and one thread's annealing."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .anneal import BEST_LENGTH, BEST_TIME, RECORD, anneal
from .arrays import Arrays
from .evaluate import evaluate
from .state import LENGTH, empty_state, load

CHUNK = 10_000  # moves between two looks at the clock
HEAVIEST = 1000.0  # a byte over the budget weighs at most this often its first weight
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
    proved : int
        A lower bound on time that may rise meanwhile; it ends the search but does not steer it.
    history : list of (float, int, int)
        Seconds since ``began``, time of the incumbent and bound, at each improvement.
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
    proved: int = 0
    history: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def room(self) -> float:
        """Gap to the bound; large where no schedule fits yet."""
        return self.time / max(1, self.bound) - 1

    def offer(self, sequence: np.ndarray) -> bool:
        """Take ``sequence`` if it is better; True where the fastest schedule changed."""
        total, peak, over = evaluate(self.a, sequence, self.budget)
        if total < 0:
            return False
        if peak < self.least_peak:
            self.least, self.least_peak = sequence.copy(), peak
        if over == 0 and total < self.time:
            self.sequence, self.time = sequence.copy(), total
            after = clock.monotonic() - self.began
            self.history.append((after, total, max(self.bound, self.proved)))
            if self.progress:
                self.progress(after, total, peak, self.bound)
            return True
        return False


class Worker:
    """One thread's state, weight and random seed."""

    def __init__(self, a: Arrays, capacity: int, weight: float, seed: int, fixed: bool) -> None:
        self.a, self.weight, self.seed, self.fixed = a, weight, seed, fixed
        self.heaviest = HEAVIEST * weight
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
                self.a, self.state, now, warm, cool, alpha, self.weight, self.heaviest,
                self.seed, self.fixed, stop, self.best, self.record,
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
