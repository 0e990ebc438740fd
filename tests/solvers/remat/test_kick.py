"""Kicks forbid reruns, and what they find is valid for the problem itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fxmem.solvers.remat import check, solve
from fxmem.solvers.remat.arrays import flatten
from fxmem.solvers.remat.kick import candidates, forbid, kicks
from fxmem.solvers.remat.worker import Worker
from tests.solvers.remat.remat_cases import random_problem


@pytest.mark.parametrize("seed", range(12))
def test_what_a_kick_finds_is_valid_and_within_the_budget(seed: int) -> None:
    problem = random_problem(random.Random(seed), 24, turn=seed % 2 == 0)
    a = flatten(problem)
    peak = check(problem, range(problem.count))[1]
    budget = problem.floor + (peak - problem.floor) // 3
    solution = solve(problem, budget, time_limit=0.3)
    if solution.status not in ("optimal", "feasible"):
        return
    sequence = np.array(solution.sequence)
    chosen = candidates(a, sequence, np.random.default_rng(seed), 4)
    again = np.bincount(sequence, minlength=problem.count)
    assert all(again[v] > 1 and not a.op["single"][v] for v in chosen)
    assert len(set(chosen.tolist())) == len(chosen)
    worker = Worker(a, 6 * problem.count + 64, 1.0, seed, False)
    for v in chosen:
        narrower, start = forbid(a, sequence, int(v))
        assert np.count_nonzero(start == v) == 1
        check(problem, start.tolist())
        assert narrower.op["single"][v] == 1
        assert a.op["single"][v] == 0
        found = kicks(worker, sequence, np.array([v]), budget, 5.0, 1e18)
        assert worker.a is a
        if found is not None:
            assert check(problem, found.tolist())[1] <= budget
            assert np.count_nonzero(found == v) == 1


def test_nothing_is_repeated_nothing_to_kick() -> None:
    problem = random_problem(random.Random(1), 10, turn=True)
    a = flatten(problem)
    assert candidates(a, np.arange(10), np.random.default_rng(0), 3).size == 0
