"""The retention-interval model against all schedules that it can say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from fxmem.solvers.remat import RematProblem, check, solve
from fxmem.solvers.remat.arrays import flatten
from fxmem.solvers.remat.cpsat import _staged
from fxmem.solvers.remat.heuristics import everything
from fxmem.solvers.remat.intervals import Intervals
from tests.solvers.remat.remat_cases import problems, random_problem
from tests.solvers.remat.transformer import transformer


def staged_schedules(problem: RematProblem) -> Iterator[list[int]]:
    """At most one rerun of each operator, in any later stage, stages in ascending order."""
    count = problem.count
    choices = [
        [v] if v in problem.once or v == problem.turn else list(range(v, count))
        for v in range(count)
    ]
    for stages in product(*choices):
        yield [v for t in range(count) for v in range(t + 1) if v == t or stages[v] == t]


@pytest.mark.parametrize("seed", range(60))
def test_the_optimum_of_all_staged_schedules(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 6), turn=seed % 3 > 0, special=seed % 4 > 0)
    peak = check(problem, range(problem.count))[1]
    results = [check(problem, schedule) for schedule in staged_schedules(problem)]
    budget = rng.randint(min(found for _, found in results), peak)
    best = min(total for total, found in results if found <= budget)
    intervals = Intervals(problem)
    intervals.model.add(intervals.capacity <= budget - problem.resident_bytes)
    intervals.model.minimize(intervals.time)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(intervals.model) == cp_model.OPTIMAL
    schedule = intervals.schedule(solver)
    total, found = check(problem, schedule)
    assert total == best == problem.base_time + solver.objective_value
    assert found <= budget


@pytest.mark.parametrize("seed", range(30))
def test_the_least_peak_of_all_staged_schedules(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 6), turn=seed % 3 > 0)
    least = min(check(problem, schedule)[1] for schedule in staged_schedules(problem))
    intervals = Intervals(problem)
    intervals.model.minimize(intervals.capacity)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(intervals.model) == cp_model.OPTIMAL
    assert solver.objective_value + problem.resident_bytes == least


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems())
def test_a_hint_is_a_solution(problem: RematProblem) -> None:
    """A staged schedule of no more runs than the model knows satisfies all of it."""
    staged = _staged(problem, everything(problem, flatten(problem), None))
    check(problem, staged.tolist())
    assert np.array_equal(_staged(problem, staged), staged)
    if np.bincount(staged).max() > 2:
        return
    intervals = Intervals(problem)
    peak = check(problem, staged.tolist())[1]
    intervals.model.add(intervals.capacity <= peak - problem.resident_bytes)
    intervals.hint(staged.tolist())
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(intervals.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    assert intervals.schedule(solver) == tuple(staged.tolist())


@settings(max_examples=20, deadline=None, derandomize=True)
@given(problem=problems(), share=st.floats(0, 1))
def test_answers_hold_and_claim_no_more_than_is_proved(problem: RematProblem, share: float) -> None:
    peak = check(problem, range(problem.count))[1]
    budget = int(problem.floor + share * (peak - problem.floor))
    solution = solve(problem, budget, "cpsat", time_limit=1)
    assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
    if solution.status in ("optimal", "feasible"):
        assert solution.peak <= budget
        assert (solution.status == "optimal") == (solution.total_time == solution.lower_bound)
    assert list(dict.fromkeys(solution.sequence)) == list(range(problem.count))


def test_better_than_the_greedy_start() -> None:
    problem = transformer(1)
    budget = int(0.7 * check(problem, range(problem.count))[1])
    found, greedy = (solve(problem, budget, name, time_limit=2) for name in ("cpsat", "greedy"))
    assert found.status in ("optimal", "feasible")
    assert found.total_time < greedy.total_time
