"""The best schedule so far, as `check` sees it."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence

from .check import check
from .problem import Action, TransferProblem
from .solution import Replay, TransferSolution


class Incumbent:
    """Best answer within the budget, that of least peak, and the bound."""

    def __init__(self, problem: TransferProblem, budget: int) -> None:
        self.problem, self.budget = problem, budget
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
        return replay

    def raise_bound(self, bound: int) -> None:
        """Another valid lower bound on the makespan."""
        self.bound = max(self.bound, bound)

    @property
    def done(self) -> bool:
        """Is the best answer proved optimal?"""
        return self.best is not None and self.best[0] <= self.bound

    def answer(self, began: float, infeasible: bool = False) -> TransferSolution:
        """What is known."""
        seconds = clock.monotonic() - began
        if self.best is not None:
            makespan, actions, peak, solver = self.best
            status = "optimal" if makespan <= self.bound else "feasible"
            return TransferSolution(actions, makespan, peak, self.bound, status, solver, seconds)
        assert self.least is not None
        peak, actions, makespan, solver = self.least
        status = "infeasible" if infeasible else "unknown"
        return TransferSolution(actions, makespan, peak, self.bound, status, solver, seconds)
