"""A tighter bound, found beside the search by a thread of its own."""

from __future__ import annotations

import threading
import time as clock
from collections.abc import Callable
from types import TracebackType

from .bound import chain_of, spread
from .chainbound import chain_bound
from .integerbound import integer_bound
from .mincut import Boundary
from .problem import RematProblem
from .worker import Incumbent

# Whole numbers at one pivot are soon solved or never; then fractions at several, and so on. Of
# fractions more pivots may prove less, as a fraction that is saved serves in each interval anew:
# hence several counts. Pivots far apart prove more where many layers are tight, the best ones
# where one place is.
# (whole numbers?, all over the graph?, pivots, share of the time that is left)
ATTEMPTS = (
    (True, False, 1, 0.1),
    (False, True, 4, 0.5),
    (False, True, 12, 0.4),
    (False, False, 8, 0.3),
    (True, True, 3, 0.2),
    (False, True, 8, 0.3),
    (False, False, 12, 0.3),
    (True, True, 6, 0.3),
    (False, True, 20, 0.3),
)


PATIENCE = 0.2  # seconds to wait at the end for a model that is being built


class _Ended(Exception):
    """The context ended while a model was being built."""


class Refined:
    """Context in which the incumbent's ``proved`` rises; its end interrupts the solver.

    OR-Tools holds no lock of Python while it solves. The bound does not steer the search, which
    would make answers depend on when it comes; it only tells how good they are, and ends the
    search where nothing better is left to find.
    """

    def __init__(
        self,
        problem: RematProblem,
        incumbent: Incumbent,
        pivots: tuple[Boundary, ...],
        deadline: float,
    ) -> None:
        self.problem, self.incumbent, self.deadline = problem, incumbent, deadline
        self._pivots = list(pivots)
        self._stop: Callable[[], object] | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Refined:
        if self._pivots:
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
            late = clock.monotonic() + PATIENCE
            while self._thread.is_alive():
                # Again and again: an interruption before the solver has begun is lost.
                if self._stop is not None:
                    self._stop()
                elif clock.monotonic() > late:
                    return  # it is building a model, and will end before it solves that
                self._thread.join(0.05)

    def _run(self) -> None:
        tried: set[tuple[bool, tuple[int, ...]]] = set()
        for whole, wide, most, share in ATTEMPTS:
            chain = (
                spread(self._pivots, most)
                if wide
                else chain_of(self._pivots, most, self.problem.count // 80)
            )
            what = whole, tuple(boundary.pivot for boundary in chain)
            left = share * (self.deadline - clock.monotonic())
            if self._ended or left < 0.2:
                return
            if what in tried:
                continue
            tried.add(what)
            try:
                found = self._whole(chain, left) if whole else self._fractions(chain, left)
            except _Ended:
                return
            self._stop = None
            self.incumbent.proved = max(self.incumbent.proved, found)

    def _begin(self, stop: Callable[[], object]) -> None:
        # In this order: an end from now on finds what to stop, an earlier one is seen here.
        self._stop = stop
        if self._ended:
            raise _Ended

    def _fractions(self, chain: list[Boundary], seconds: float) -> int:
        def started(solver: object) -> None:
            self._begin(solver.InterruptSolve)  # type: ignore[attr-defined]

        return chain_bound(self.problem, chain, self.incumbent.budget, seconds, started)

    def _whole(self, chain: list[Boundary], seconds: float) -> int:
        def started(solver: object) -> None:
            self._begin(solver.stop_search)  # type: ignore[attr-defined]

        known = None if self.incumbent.sequence is None else self.incumbent.time
        return integer_bound(self.problem, chain, self.incumbent.budget, seconds, known, started)
