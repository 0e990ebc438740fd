"""Problems say what is wrong with their numbers, and `check` what is wrong with an answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from fxmem.solvers.packing import PackingProblem, PackingProblemError, PackingViolation, check
from fxmem.solvers.packing.arrays import Buffers, neighbours
from tests.solvers.packing.packing_cases import least_height, problems


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (([0], [1, 2], [1]), "2 of upper for 1 sizes"),
        (([0, 1], [1], [1]), "2 of lower for 1 sizes"),
        (([0], [1], [-4]), "buffer 0 has size -4"),
        (([0, 3], [1, 3], [1, 1]), "buffer 1 lives from 3 to 3"),
        (([0], [1], [1.5]), r"size\[0\] is 1.5, no whole number"),
        (([0], [1], ["x"]), r"size\[0\] is 'x', no whole number"),
        (([0], [1], [1], 0), "alignment 0 is below 1"),
        (([0], [1], [1], 1, [0, 1]), "2 of fixed for 1 sizes"),
        (([0], [1], [1], 4, [6]), "fixed at 6, no multiple of alignment 4"),
        (([0], [1], [1], 1, [-2]), "fixed at -2"),
        (([0, 0], [1, 1], [3, 3], 1, [0, 2]), "fixed buffers 0 and 1 overlap"),
        (([0], [1], [1 << 61]), "use a larger unit"),
    ],
)
def test_what_is_wrong_is_named(fields: tuple, message: str) -> None:
    with pytest.raises(PackingProblemError, match=message):
        PackingProblem(*fields)


def test_none_and_minus_one_are_free() -> None:
    problem = PackingProblem(np.array([0, 0]), [2, 2], [3, 4], fixed=[None, 8])
    assert problem.fixed == (-1, 8)
    assert problem == PackingProblem((0, 0), (2, 2), (3, 4), 1, (-1, 8))
    assert hash(problem) == hash(PackingProblem((0, 0), (2, 2), (3, 4), 1, (-1, 8)))


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ((0, 8), "2 offsets for 3 buffers"),
        ((0, -4, 8), "buffer 1 lies at -4, below 0"),
        ((0, 6, 8), "buffer 1 lies at 6, no multiple of alignment 4"),
        ((0, 8, 4), "buffer 2 lies at 4 and is fixed at 8"),
        ((0, 4, 8), r"buffers 0 at \[0, 5\) and 1 at \[4, 8\) overlap at time 1"),
        ((0, 8, 8), r"buffers 1 at \[8, 12\) and 2 at \[8, 11\) overlap at time 2"),
    ],
)
def test_each_violation_is_named(offset: tuple[int, ...], message: str) -> None:
    problem = PackingProblem([0, 1, 2], [2, 4, 5], [5, 4, 3], 4, [-1, -1, 8])
    with pytest.raises(PackingViolation, match=message):
        check(problem, offset)


def test_a_buffer_is_gone_at_its_upper_time() -> None:
    problem = PackingProblem([0, 1, 2], [2, 4, 5], [5, 4, 3], 4, [-1, -1, 8])
    assert check(problem, (8, 0, 8)) == 13
    assert check(PackingProblem([0, 0], [9, 9], [7, 0]), (0, 3)) == 7
    assert check(PackingProblem([], [], []), ()) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems(most=5))
def test_the_bound_is_never_above_the_lowest_arena(problem: PackingProblem) -> None:
    assert problem.lower_bound <= least_height(problem)


def test_bounds_by_hand() -> None:
    assert PackingProblem([0, 1, 2], [2, 3, 4], [5, 4, 3]).lower_bound == 9
    assert PackingProblem([0, 0], [1, 1], [5, 5], 8).lower_bound == 13
    assert PackingProblem([0, 5], [1, 6], [5, 5], 1, [-1, 40]).lower_bound == 45
    assert PackingProblem([], [], []).lower_bound == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems(most=12, fixed=False))
def test_sections_say_who_meets_whom(problem: PackingProblem) -> None:
    buffers = Buffers.of(problem)
    if buffers is None:
        assert not any(problem.size)
        return
    at, who = buffers.near
    met = {(i, j) for i in range(buffers.count) for j in who[at[i] : at[i + 1]].tolist()}
    number = buffers.index.tolist()
    assert met == {
        (i, j)
        for i, a in enumerate(number)
        for j, b in enumerate(number)
        if i != j and problem.lower[a] < problem.upper[b] and problem.lower[b] < problem.upper[a]
    }
    assert len(met) == buffers.intervals.pairs() == len(neighbours(buffers.lower, buffers.upper)[1])
    totals = buffers.intervals.totals(buffers.size)
    assert buffers.intervals.busiest(totals).tolist() == [
        totals[first:last].max()
        for first, last in zip(buffers.intervals.first, buffers.intervals.last, strict=True)
    ]


def test_reading_a_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,lower,upper,size,fixed\nx,0,2,8,\ny,1,3,4,-1\nz,2,4,4,12\n")
    problem = PackingProblem.read_csv(path, alignment=4)
    assert problem == PackingProblem([0, 1, 2], [2, 3, 4], [8, 4, 4], 4, [-1, -1, 12])
    path.write_text("id,lower,upper\nx,0,2\n")
    with pytest.raises(PackingProblemError, match=r"a\.csv is no instance"):
        PackingProblem.read_csv(path)
    path.write_text("id,lower,upper,size\nx,2,2,1\n")
    with pytest.raises(PackingProblemError, match="no time at all"):
        PackingProblem.read_csv(path)
