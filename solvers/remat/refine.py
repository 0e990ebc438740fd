"""A tighter bound from more pivots, found beside the search by a thread of its own."""

from __future__ import annotations

import threading
import time as clock
from types import TracebackType
from typing import Any

from .bound import Bound, chain_of
from .chainbound import chain_bound
from .problem import RematProblem

PIVOTS = (8, 12)


class Refined:
    """Context in which the bound rises; its end interrupts the solver.

    OR-Tools holds no lock of Python while it solves. The bound does not steer the search, which
    would make answers depend on when it comes; it only tells how good they are.

    Attributes
    ----------
    time : int
        Best bound so far.
    """

    def __init__(self, problem: RematProblem, budget: int, bound: Bound, deadline: float) -> None:
        self.problem, self.budget, self.deadline = problem, budget, deadline
        self.time = bound.time
        self._pivots = bound.pivots
        self._solver: Any = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Refined:
        if self._pivots and self.time > self.problem.base_time:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        if self._thread.ident is not None:
            while self._thread.is_alive():
                # Again and again: an interruption before the solver has begun is lost.
                if self._solver is not None:
                    self._solver.InterruptSolve()
                self._thread.join(0.05)

    def _started(self, solver: Any) -> None:
        self._solver = solver

    def _run(self) -> None:
        tried = 0
        for most in PIVOTS:
            chain = chain_of(list(self._pivots), most, self.problem.count // 80)
            left = self.deadline - clock.monotonic()
            if self._ended or left < 0.2 or len(chain) <= tried:
                return
            tried = len(chain)
            found = chain_bound(self.problem, chain, self.budget, left, self._started)
            self.time = max(self.time, found)
