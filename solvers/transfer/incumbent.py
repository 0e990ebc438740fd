"""The best schedule so far, as `check` sees it."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence

from .check import check
from .problem import Action, TransferProblem
from .solution import Replay, TransferSolution

Progress = Callable[[float, int, int, int], None]


class Incumbent:
    """Best answer within the budget, that of least peak, and the bound.

    Attributes
    ----------
    best : (makespan, actions, peak, solver) or None
    least : (peak, actions, makespan, solver) or None
        Of least peak, within the budget or not.
    bound : int
    """

    def __init__(
        self,
        problem: TransferProblem,
        budget: int,
        gap: float = 0.0,
        progress: Progress | None = None,
    ) -> None:
        self.problem, self.budget, self.gap, self.progress = problem, budget, gap, progress
        self.began = clock.monotonic()
        self.bound = 0
        self.best: tuple[int, tuple[Action, ...], int, str] | None = None
        self.least: tuple[int, tuple[Action, ...], int, str] | None = None

    def offer(self, actions: Sequence[Action], solver: str) -> Replay:
        """Take it if it is better; raises `ScheduleError` if it is no valid schedule."""
        replay = check(self.problem, actions)
        found = tuple(Action(*a) for a in actions)
        if self.least is None or replay.peak < self.least[0]:
            self.least = replay.peak, found, replay.makespan, solver
        if replay.peak <= self.budget and (self.best is None or replay.makespan < self.best[0]):
            self.best = replay.makespan, found, replay.peak, solver
            if self.progress is not None:
                after = clock.monotonic() - self.began
                self.progress(after, replay.makespan, replay.peak, self.bound)
        return replay

    def raise_bound(self, bound: int) -> None:
        """Another valid lower bound on the makespan."""
        self.bound = max(self.bound, bound)

    @property
    def done(self) -> bool:
        """Is the best answer proved optimal, or close enough?"""
        return self.best is not None and self.best[0] <= self.bound * (1 + self.gap)

    def answer(self, infeasible: bool = False, interrupted: bool = False) -> TransferSolution:
        """What is known."""
        assert self.least is not None
        least = self.least[0]
        if self.best is not None:
            makespan, actions, peak, solver = self.best
            status = "optimal" if makespan <= self.bound else "feasible"
        else:
            peak, actions, makespan, solver = self.least
            status = "infeasible" if infeasible else "unknown"
        seconds = clock.monotonic() - self.began
        return TransferSolution(
            actions, makespan, peak, self.bound, status, solver, least, seconds, interrupted
        )
