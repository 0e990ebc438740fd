"""What a solver tells of its way to an answer."""

from __future__ import annotations

import pytest

from fxmem.solvers.remat import RematProblem, solve

# A chain forward and back: each backward operator reads what its forward one made.
FORWARD = tuple((i, i + 1) for i in range(9))
EDGES = (*FORWARD, *((9 + i, 10 + i) for i in range(10)), *((9 - i, 10 + i) for i in range(10)))
PROBLEM = RematProblem.from_edges([4] * 20, [3] * 20, EDGES)


@pytest.mark.parametrize("solver", ["auto", "ilp", "sqrt"])
def test_history_falls_to_the_answer(solver: str) -> None:
    solution = solve(PROBLEM, 30, solver, time_limit=1.0)
    assert solution.status in ("optimal", "feasible")
    seconds, times, bounds = zip(*solution.history, strict=True)
    assert list(times) == sorted(times, reverse=True)
    assert list(bounds) == sorted(bounds)
    assert (times[-1], bounds[-1]) == (solution.total_time, solution.lower_bound)
    assert 0 <= seconds[0] <= seconds[-1]


def test_no_answer_no_history() -> None:
    assert solve(PROBLEM, 3, time_limit=0.5).history == ()
