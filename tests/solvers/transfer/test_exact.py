"""The full model against brute force, and `solve` and its bound against both."""

from __future__ import annotations

import random

import pytest

from fxmem.solvers.transfer import check, solve
from fxmem.solvers.transfer.exact import exact
from tests.solvers.remat.remat_cases import random_problem
from tests.solvers.transfer.brute import brute
from tests.solvers.transfer.transfer_cases import with_tiers


@pytest.mark.parametrize("seed", range(60))
def test_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    remat = random_problem(rng, rng.randint(2, 5), turn=seed % 3 > 0, special=seed % 2 == 0)
    problem = with_tiers(rng, remat, 2)
    plain = check(problem, [("run", v) for v in range(remat.count)]).peak
    budget = rng.randint(min(remat.floor, plain), plain)
    best = brute(problem, budget)
    found = exact(problem, budget, seconds=1 if best is None else 20)
    if best is None:
        assert found.actions is None
        return
    makespan, actions = best
    assert check(problem, actions, budget).makespan == makespan
    assert found.actions is not None
    assert check(problem, found.actions, budget).makespan == found.bound == makespan


@pytest.mark.parametrize("seed", range(100, 140))
def test_bound_and_answer_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    remat = random_problem(rng, rng.randint(3, 6), turn=seed % 4 > 0, special=seed % 2 == 0)
    problem = with_tiers(rng, remat, 2)
    plain = check(problem, [("run", v) for v in range(remat.count)]).peak
    budget = rng.randint(min(remat.floor, plain), plain)
    best = brute(problem, budget)
    answer = solve(problem, budget, time_limit=0.3)
    if best is None:
        assert answer.status in ("infeasible", "unknown")
        return
    assert answer.status != "infeasible"
    assert answer.lower_bound <= best[0]
    if answer.status in ("optimal", "feasible"):
        assert check(problem, answer.actions, budget).makespan == answer.makespan >= best[0]
    if answer.status == "optimal":
        assert answer.makespan == best[0]
