"""Random modules under random budgets: the numbers of eager, within the budget."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from tests.fuzz.judge import Refused, judge
from tests.fuzz.programs import Program, programs

PHASES = (Phase.generate, Phase.shrink)
LENIENT = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """Each case collects garbage a few times; what is loaded by now need not be looked at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _judge(program: Program) -> None:
    try:
        judge(program, time_limit=0.1)
    except Refused:
        assume(False)


@settings(
    max_examples=100, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=LENIENT
)
@given(programs(most=4))
def test_random_modules(program: Program) -> None:
    _judge(program)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_many_random_modules(part: int) -> None:
    cases = settings(
        max_examples=100,
        deadline=None,
        database=None,
        phases=PHASES,
        suppress_health_check=LENIENT,
    )
    seed(part)(cases(given(program=programs(most=12))(_judge)))()
