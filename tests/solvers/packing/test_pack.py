"""Packings are packings, no lower than the bound and no higher than plain orders give."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.packing import PackingProblem, PackingViolation, check, pack
from fxmem.solvers.packing.greedy import Buffers, greedy, orders, place_in

buffer = st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(1, 40))
buffers = st.lists(buffer, min_size=1, max_size=14)


def problem_of(rows: list, alignment: int = 1, fixed: tuple = ()) -> PackingProblem:
    return PackingProblem(
        [low for low, _, _ in rows],
        [low + time for low, time, _ in rows],
        [size for *_, size in rows],
        alignment,
        fixed,
    )


def least_height(problem: PackingProblem) -> int:
    """The optimum, by trying every order with first fit: one of them is optimal."""
    data = Buffers.of(problem)
    every = itertools.permutations(range(problem.count))
    return min(place_in(data, None, np.array(order), False).height for order in every)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(buffers, st.sampled_from([1, 4, 64]))
def test_every_packing_passes_the_check(rows: list, alignment: int) -> None:
    problem = problem_of(rows, alignment)
    solution = pack(problem, time_limit=0.05)
    assert check(problem, solution.offset) == solution.height
    assert solution.lower_bound <= solution.height
    assert (solution.status == "optimal") == (solution.height == solution.lower_bound)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(buffer, min_size=1, max_size=6))
def test_small_problems_are_packed_best(rows: list) -> None:
    problem = problem_of(rows)
    least = least_height(problem)
    assert problem.lower_bound <= least
    assert pack(problem, capacity=least, time_limit=0.5).height <= least
    below = pack(problem, capacity=least - 1, time_limit=0.02)
    assert below.status == ("infeasible" if least - 1 < problem.lower_bound else "unknown")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(buffers, st.integers(0, 13), st.integers(0, 9))
def test_fixed_offsets_stay(rows: list, which: int, offset: int) -> None:
    fixed = [None] * len(rows)
    fixed[which % len(rows)] = 4 * offset
    problem = problem_of(rows, 4, tuple(fixed))
    solution = pack(problem, time_limit=0.05)
    assert solution.offset[which % len(rows)] == 4 * offset
    check(problem, solution.offset)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(buffers)
def test_many_buffers_are_placed_as_few_are(rows: list) -> None:
    """Without lists of neighbours, for the sizes at which those would not fit in memory."""
    from fxmem.solvers.packing.kernels import neighbours

    data = Buffers.of(problem_of(rows))
    lists = neighbours(data.lower, data.upper)
    assert data.pairs() == len(lists[1])
    for order in orders(data).values():
        for gap in (True, False):
            few, many = (place_in(data, found, order, gap) for found in (lists, None))
            assert few.offset.tolist() == many.offset.tolist()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(buffers)
def test_congestion(rows: list) -> None:
    problem = problem_of(rows)
    lives = list(zip(problem.lower, problem.upper, problem.size, strict=True))
    alive = [sum(s for a, b, s in lives if a <= t < b) for t in range(40)]
    found = Buffers.of(problem).congestion().tolist()
    assert found == [max(alive[a:b]) for a, b, _ in lives]
    assert problem.lower_bound == max(alive)


def training_step(layers: int, rng: np.random.Generator) -> PackingProblem:
    """Lifetimes as in a training step: most nest, some pass quickly."""
    lower, upper, size = [], [], []
    for i in range(layers):
        for _ in range(6):
            lower.append(4 * i)
            upper.append(8 * layers - 4 * i)
            size.append(int(rng.integers(1, 64)) * 1024)
        for start in (4 * i, 8 * layers - 4 * i - 2):
            lower += [start, start + 1]
            upper += [start + 2, start + 3]
            size += [int(s) * 1024 for s in rng.integers(1, 64, 2)]
    return PackingProblem(lower, upper, size, alignment=64)


def test_never_worse_than_a_plain_order() -> None:
    problem = training_step(40, np.random.default_rng(0))
    data = Buffers.of(problem)
    plain = min(p.height for p in greedy(data, 0, time.monotonic() + 60))
    solution = pack(problem, time_limit=1)
    assert solution.height <= plain
    assert solution.height <= 1.01 * solution.lower_bound


@pytest.mark.benchmark
def test_fifty_thousand_buffers() -> None:
    problem = training_step(5_000, np.random.default_rng(1))
    assert problem.count == 50_000
    pack(training_step(10, np.random.default_rng(0)), time_limit=0.1)  # compiles
    start = time.monotonic()
    solution = pack(problem, time_limit=10)
    assert time.monotonic() - start <= 11
    assert solution.height <= 1.02 * solution.lower_bound


def test_time_limit() -> None:
    rng = np.random.default_rng(2)
    lower = rng.integers(0, 300, 400)
    problem = PackingProblem(lower, lower + rng.integers(1, 200, 400), rng.integers(1, 10**6, 400))
    pack(problem, time_limit=0.1)
    start = time.monotonic()
    pack(problem, time_limit=1.0)
    assert time.monotonic() - start <= 1.5


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ([0, 4], "buffers 0 and 1 overlap"),
        ([0, 6], "not a multiple of 4"),
        ([-4, 8], "not a multiple of 4 from 0 on"),
        ([0], "1 offsets for 2 buffers"),
        ([4, 12], "fixed at 0"),
    ],
)
def test_check_names_what_is_wrong(offset: list, message: str) -> None:
    problem = PackingProblem([0, 1], [2, 3], [5, 5], 4, (0, None))
    with pytest.raises(PackingViolation, match=message):
        check(problem, offset)
    assert check(problem, [0, 8]) == 13


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (([0], [1, 2], [1]), "one entry for each"),
        (([0], [0], [1]), "live for a time"),
        (([0], [1], [0]), "without bytes"),
        (([0], [1], [1], 0), "at least 1"),
        (([0], [1], [1], 4, (2,)), "no multiple"),
        (([0], [1], [1 << 61]), "larger units"),
    ],
)
def test_bad_problems(fields: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackingProblem(*fields)


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,lower,upper,size\nx,0,2,5\ny,1,3,6\n")
    assert PackingProblem.read_csv(path) == PackingProblem((0, 1), (2, 3), (5, 6))
    path.write_text("id,lower,size\nx,0,5\n")
    with pytest.raises(ValueError, match="no packing instance"):
        PackingProblem.read_csv(path)


def test_nothing_to_pack() -> None:
    assert pack(PackingProblem((), (), ())).status == "optimal"
