"""Large graphs of identical layers: the time limit holds, and so does the gap."""

from __future__ import annotations

import time

import pytest

from fxmem.solvers.remat import check, solve, warm_up
from tests.solvers.remat.transformer import transformer


def test_a_dozen_layers_are_planned_close_to_the_bound() -> None:
    problem = transformer(12)
    budget = int(0.4 * check(problem, range(problem.count))[1])
    solution = solve(problem, budget, time_limit=10, gap=2e-3)
    assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
    assert solution.peak <= budget
    assert solution.gap < 0.02


@pytest.mark.benchmark
@pytest.mark.parametrize("layers", [12, 24, 48, 96])
@pytest.mark.parametrize("share", [0.6, 0.3, 0.15])
def test_two_percent_within_half_a_minute(layers: int, share: float) -> None:
    warm_up()
    problem = transformer(layers)
    budget = int(share * check(problem, range(problem.count))[1])
    began = time.monotonic()
    solution = solve(problem, budget, time_limit=30, gap=2e-3)
    seconds = time.monotonic() - began
    print(f"{layers} layers, {problem.count} operators, budget {share}: "
          f"gap {solution.gap:.3%}, {seconds:.1f} s")  # fmt: skip
    assert check(problem, solution.sequence)[1] <= budget
    assert solution.gap < 0.02
    assert seconds < 33
