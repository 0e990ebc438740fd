"""The complete search and CP-SAT against trying everything."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.packing import PackingProblem, check, pack
from fxmem.solvers.packing.arrays import Buffers
from fxmem.solvers.packing.cpsat import cpsat
from fxmem.solvers.packing.explore import FAILED, RUNNING, SOLVED, explore
from fxmem.solvers.packing.search import levels
from fxmem.solvers.packing.state import KEYS, NODES, State, empty_state
from tests.solvers.packing.packing_cases import least_height, problems, uniform


def decide(state: State, slice_: int = 1_000_000) -> int:
    status = RUNNING
    while status == RUNNING:
        status = explore(state, slice_)
    return status


@settings(max_examples=150, deadline=None, derandomize=True)
@given(problems(), st.sampled_from(list(permutations(KEYS))), st.integers(1, 20))
def test_decides_every_capacity_as_trying_everything_does(
    problem: PackingProblem, order: tuple[str, ...], slice_: int
) -> None:
    buffers, least = Buffers.of(problem), least_height(problem)
    if buffers is None:
        return
    for capacity in range(max(problem.lower_bound, least - 2), least + 2):
        state = empty_state(buffers, capacity, order)
        status = decide(state, slice_)
        assert status == (SOLVED if capacity >= least else FAILED)
        if status == SOLVED:
            assert check(problem, buffers.offsets(state.buffer["offset"])) <= capacity


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_cpsat_on_more_buffers(seed: int) -> None:
    problem = uniform(16, seed, longest=9)
    buffers = Buffers.of(problem)
    assert buffers is not None
    exact = cpsat(buffers, sum(problem.size), True, 60.0)
    assert exact.placed is not None
    least = check(problem, buffers.offsets(exact.placed))
    assert exact.bound == least
    for order in permutations(KEYS):
        assert decide(empty_state(buffers, least, order)) == SOLVED
        assert decide(empty_state(buffers, least - 1, order)) == FAILED


@settings(max_examples=30, deadline=None, derandomize=True)
@given(problems(most=6))
def test_cpsat_finds_the_lowest_and_proves_it(problem: PackingProblem) -> None:
    buffers, least = Buffers.of(problem), least_height(problem)
    if buffers is None:
        return
    answer = cpsat(buffers, least + 5, True, 60.0)
    assert answer.placed is not None
    assert (check(problem, buffers.offsets(answer.placed)), answer.bound) == (least, least)
    below = cpsat(buffers, least - 1, False, 60.0)
    assert below.infeasible
    assert below.bound == least


def test_a_stopped_search_goes_on_as_if_it_had_not_been_stopped() -> None:
    problem = uniform(40, 3, longest=20)
    buffers = Buffers.of(problem)
    assert buffers is not None
    capacity = int(1.03 * problem.lower_bound)
    whole, pieces = (empty_state(buffers, capacity, KEYS) for _ in range(2))
    status = explore(whole, 3_000)
    for _ in range(300):
        last = explore(pieces, 10)
        if last != RUNNING:
            break
    assert status == last
    assert whole.meta[NODES] == pieces.meta[NODES]
    assert (whole.buffer["offset"] == pieces.buffer["offset"]).all()


def test_large_buffers_alone_are_a_part_of_the_problem() -> None:
    problem = PackingProblem(
        [0, 1, 0, 2], [3, 4, 9, 5], [6_000, 1, 8_000, 4_000], 1, [-1, -1, 0, -1]
    )
    buffers = Buffers.of(problem)
    assert buffers is not None
    small, whole = levels(buffers, 18_000)
    assert small.chosen.tolist() == [0, 2]
    assert small.large.problem == PackingProblem(
        [0, 0, 2], [3, 9, 5], [6_000, 8_000, 4_000], 1, [-1, 0, -1]
    )
    assert whole.large is buffers
    # The ranges barred by the fixed buffer stay.
    assert pack(small.large.problem).offset == (8_000, 0, 14_000)
