"""Checkmate's relaxation, its rounding, and its honesty about its size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import within

from fxmem.solvers.remat import RematProblem, check, solve, warm_up
from fxmem.solvers.remat.arrays import flatten
from fxmem.solvers.remat.checkmate import _repaired
from tests.solvers.remat.remat_cases import problems
from tests.solvers.remat.test_solve import segments
from tests.solvers.remat.transformer import transformer


def ancestors(problem: RematProblem, v: int) -> set[int]:
    found, stack = {v}, [v]
    while stack:
        for u in problem.inputs[stack.pop()]:
            if u not in found:
                found.add(u)
                stack.append(u)
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(), seed=st.integers(0, 1000), density=st.sampled_from([0.0, 0.5, 1.0]))
def test_whatever_was_rounded_is_repaired(problem: RematProblem, seed: int, density: float) -> None:
    kept = np.tril(np.random.default_rng(seed).random((problem.count, problem.count)) < density, -1)
    sequence = _repaired(problem, flatten(problem), kept)
    check(problem, sequence.tolist())
    assert list(dict.fromkeys(sequence.tolist())) == list(range(problem.count))
    if density == 1.0:  # all is kept: nothing runs twice
        assert len(sequence) == problem.count
    if density == 0.0 and not problem.once and problem.turn is None:
        assert len(sequence) == sum(len(ancestors(problem, v)) for v in range(problem.count))


@pytest.mark.parametrize(("share", "most"), [(0.9, 1.25), (0.7, 1.25), (0.6, 1.4)])
def test_near_the_optimum_on_a_small_step(share: float, most: float) -> None:
    problem = segments(2, 4)
    budget = int(share * check(problem, range(problem.count))[1])
    solution = solve(problem, budget, "checkmate-lp", time_limit=3)
    best = solve(problem, budget, "ilp", time_limit=3, reorder=False)
    assert solution.status in ("optimal", "feasible")
    assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
    assert solution.peak <= budget
    assert best.total_time <= solution.total_time <= most * best.total_time


@pytest.mark.parametrize("layers", [4, 24])
def test_too_large_is_said_at_once(layers: int) -> None:
    problem = transformer(layers)
    budget = int(0.8 * check(problem, range(problem.count))[1])
    warm_up()
    solution = within(4, lambda: solve(problem, budget, "checkmate-lp", time_limit=10))
    assert solution.status == "unknown"
    assert solution.sequence == tuple(range(problem.count))
