"""What every name in `SOLVERS` owes, on random problems of both kinds."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import within

from fxmem.solvers.remat import SOLVERS, RematProblem, check, solve, warm_up
from fxmem.solvers.remat.exact import exact
from tests.solvers.remat.remat_cases import random_problem, shortest
from tests.solvers.remat.test_solve import verify
from tests.solvers.remat.transformer import transformer

NAMED = (
    "auto", "ilp", "cpsat", "anneal", "blocks", "none", "all", "sqrt", "greedy", "rotor",
    "checkmate-lp", "mincut",
)  # fmt: skip


def test_the_names_that_users_rely_on() -> None:
    assert set(NAMED) <= set(SOLVERS)
    assert all(SOLVERS.values())


@st.composite
def layered_steps(draw: st.DrawFn) -> RematProblem:
    """A training step: layers, some with a branch; backward reads forward's storages."""
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    size, reads = [rng.randint(1, 4)], [()]
    tape: list[tuple[int, tuple[int, ...]]] = []
    kinds = [(rng.randint(1, 3), [rng.randint(1, 5) for _ in range(3)]) for _ in range(2)]
    x = 0
    for layer in range(draw(st.integers(1, 4))):
        steps, sizes = kinds[layer % 2]
        source = x
        for k in range(steps):
            size.append(sizes[k])
            reads.append((x,) if k < 2 else (x, source))
            tape.append((len(size) - 1, reads[-1]))
            x = len(size) - 1
    turn = len(size)
    size.append(0)
    reads.append((x,))
    gradient = turn
    for out, inputs in reversed(tape):
        size.append(rng.choice(kinds[0][1]))
        reads.append((gradient, *inputs, out))
        gradient = len(size) - 1
    count = len(size)
    return RematProblem(
        time=tuple(rng.randint(1, 9) for _ in range(count)),
        size=tuple(size),
        reads=tuple(reads),
        writes=tuple((v,) for v in range(count)),
        workspace=tuple(rng.randint(0, 1) for _ in range(count)),
        reuse=tuple(tuple(row[:1]) for row in reads),
        turn=turn,
        keep=frozenset({gradient}),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[RematProblem, int]:
    """A plain graph, a random step, or a layered step, and a budget from nothing to plenty."""
    kind = draw(st.sampled_from(["plain", "step", "layers"]))
    if kind == "layers":
        problem = draw(layered_steps())
    else:
        rng = random.Random(draw(st.integers(0, 1 << 30)))
        problem = random_problem(rng, draw(st.integers(1, 14)), kind == "step", kind == "step")
    peak = check(problem, range(problem.count))[1]
    return problem, draw(st.integers(0, peak + 2))


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(case=cases(), reorder=st.booleans())
def test_the_answer_is_what_it_says(
    solver: str, case: tuple[RematProblem, int], reorder: bool
) -> None:
    problem, budget = case
    solution = solve(problem, budget, solver, time_limit=0.1, reorder=reorder)
    assert solution.solver == solver
    verify(problem, budget, solution)
    if budget < problem.floor:
        assert solution.status in ("infeasible", "unknown")
    if not reorder:
        assert list(dict.fromkeys(solution.sequence)) == list(range(problem.count))


@cache
def small(seed: int) -> tuple[RematProblem, int, int | None]:
    """At most 8 operators, a budget, and the least time within it (None: nothing fits)."""
    rng = random.Random(seed)
    while True:
        problem = random_problem(rng, rng.randint(4, 8), turn=seed % 2 > 0, special=seed % 4 > 1)
        peak = check(problem, range(problem.count))[1]
        if problem.floor + 1 < peak:
            budget = rng.randint(problem.floor, peak - 1)
            return problem, budget, shortest(problem, budget)


@pytest.mark.parametrize("seed", range(20))
def test_the_full_model_equals_brute_force(seed: int) -> None:
    problem, budget, least = small(seed)
    answer = exact(problem, budget, None, problem.base_time, True, 1.0 if least is None else 10.0)
    if least is None:
        assert answer.sequence is None
    else:
        assert answer.sequence is not None
        total, peak = check(problem, answer.sequence)
        assert total == answer.bound == least
        assert peak <= budget


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(8))
def test_bounds_never_exceed_the_exact_optimum(solver: str, seed: int) -> None:
    problem, budget, least = small(seed)
    solution = solve(problem, budget, solver, time_limit=0.2)
    verify(problem, budget, solution)
    if least is None:
        assert solution.status in ("infeasible", "unknown")
        return
    assert solution.status != "infeasible"
    assert solution.lower_bound <= least
    if solution.status in ("optimal", "feasible"):
        assert solution.total_time >= least


@pytest.mark.parametrize("layers", [2, 12])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_time_limit_is_kept(solver: str, layers: int) -> None:
    problem = transformer(layers)
    budget = int(0.5 * check(problem, range(problem.count))[1])
    warm_up()
    limit = 1.0
    solution = within(1.1 * limit + 0.3, lambda: solve(problem, budget, solver, time_limit=limit))
    verify(problem, budget, solution)
