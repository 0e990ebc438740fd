"""The full model against brute force."""

from __future__ import annotations

import random

import pytest

from fxmem.solvers.remat import check, solve
from fxmem.solvers.remat.exact import exact
from tests.solvers.remat.remat_cases import optimum, random_problem


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 5), turn=seed % 3 > 0, special=seed % 2 == 0)
    peak = check(problem, range(problem.count))[1]
    budget = rng.randint(min(problem.floor, peak), peak)
    best = optimum(problem, budget, slack=8)
    answer = exact(problem, budget, None, problem.base_time, True, 5.0)
    if best is None:
        if answer.sequence is not None:  # beyond what brute force looked at
            assert sum(problem.time[v] for v in answer.sequence) > problem.base_time + 8
        return
    assert answer.sequence is not None
    assert check(problem, answer.sequence) == (best, check(problem, answer.sequence)[1])
    assert check(problem, answer.sequence)[1] <= budget
    assert answer.bound == best


@pytest.mark.parametrize("seed", range(30))
def test_solver_by_name_in_either_order(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(3, 6), turn=True)
    peak = check(problem, range(problem.count))[1]
    budget = rng.randint(min(problem.floor, peak), peak)
    for reorder in (True, False):
        solution = solve(problem, budget, "ilp", time_limit=2, reorder=reorder)
        if solution.status not in ("optimal", "feasible"):
            continue
        assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
        assert solution.peak <= budget
        assert solution.lower_bound <= solution.total_time
        if not reorder:
            assert list(dict.fromkeys(solution.sequence)) == list(range(problem.count))
