"""The proving thread never keeps a search from ending."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from fxmem.solvers.remat import check, refine
from fxmem.solvers.remat.arrays import flatten
from fxmem.solvers.remat.mincut import Boundary
from fxmem.solvers.remat.worker import Incumbent
from tests.solvers.remat.test_solve import segments


class Solver:
    """Interrupted, it stops."""

    def __init__(self) -> None:
        self.stopped = False

    def stop_search(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("building", [0.0, 6.0])
def test_neither_building_nor_solving_is_waited_for(
    building: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved = []

    def slow(*arguments: object) -> int:
        started = cast(Callable[[Solver], None], arguments[-1])
        time.sleep(building)
        solver = Solver()
        started(solver)
        while not solver.stopped:
            time.sleep(0.01)
        solved.append(solver)
        return 1 << 40

    monkeypatch.setattr(refine, "integer_bound", slow)
    problem = segments(3, 3)
    incumbent = Incumbent(flatten(problem), 1000, problem.base_time)
    pivots = (Boundary(problem, 9),)
    with refine.Refined(problem, incumbent, pivots, time.monotonic() + 30) as refined:
        time.sleep(0.05)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    refined._thread.join(20)
    assert not refined._thread.is_alive()
    assert len(solved) == (building == 0)  # what was still being built is not solved
    assert (incumbent.proved > 0) == (building == 0)


def test_it_proves_what_one_pivot_can() -> None:
    problem = segments(3, 3)
    budget = int(0.8 * check(problem, range(problem.count))[1])
    incumbent = Incumbent(flatten(problem), budget, problem.base_time)
    incumbent.offer(np.arange(problem.count))
    with refine.Refined(
        problem, incumbent, (Boundary(problem, 9),), time.monotonic() + 5
    ) as refined:
        refined._thread.join(5)
    assert incumbent.proved > problem.base_time
