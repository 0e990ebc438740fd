"""What `pack` must reach in how much time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.clock import within

from fxmem.solvers.packing import PackingProblem, check, pack, warm_up
from tests.solvers.packing.packing_cases import training_step

INSTANCES = Path(__file__).parents[4] / "shared" / "data" / "packing"
CAPACITY = 1_048_576


def instance(name: str) -> PackingProblem:
    path = INSTANCES / f"{name}.{CAPACITY}.csv"
    if not path.exists():
        pytest.skip(f"no instance {path}")
    return PackingProblem.read_csv(path)


@pytest.mark.benchmark
def test_all_challenging_instances_within_their_capacity() -> None:
    warm_up()
    began = time.monotonic()
    for name in "ABCDEFGHIJK":
        problem = instance(name)
        answer = pack(problem, CAPACITY)
        assert answer.status in ("optimal", "feasible"), name
        assert check(problem, answer.offset) <= CAPACITY
    assert time.monotonic() - began <= 18


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("name", "capacity"), [("C", 1_039_360), ("J", 1_044_480), ("D", 1_040_384)]
)
def test_below_their_capacity(name: str, capacity: int) -> None:
    problem = instance(name)
    answer = pack(problem, capacity)
    assert check(problem, answer.offset) <= capacity


@pytest.mark.benchmark
def test_fifty_thousand_buffers() -> None:
    warm_up()
    problem = training_step(50_000, 0)
    began = time.monotonic()
    answer = pack(problem, time_limit=9)
    assert time.monotonic() - began <= 10
    assert check(problem, answer.offset) <= 1.02 * problem.lower_bound


def test_a_plan_of_two_thousand_buffers_takes_no_search() -> None:
    warm_up()
    problem = training_step(2_000, 0)
    answer = within(1.9, lambda: pack(problem))
    assert (check(problem, answer.offset), answer.status) == (problem.lower_bound, "optimal")
