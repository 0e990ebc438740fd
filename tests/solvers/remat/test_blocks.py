"""Kinds of stages, the ways to save each, and what their combination reaches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import within

from fxmem.solvers.remat import RematProblem, check, solve, warm_up
from fxmem.solvers.remat.arrays import flatten
from fxmem.solvers.remat.blocks import Alone, _carried, kind_of, ways_of
from fxmem.solvers.remat.rotor import costs_of
from fxmem.solvers.remat.stages import chain_of_stages
from tests.solvers.remat.remat_cases import problems
from tests.solvers.remat.transformer import transformer


def test_identical_layers_are_one_kind_and_cost_the_same() -> None:
    problem = transformer(6)
    a = flatten(problem)
    chain = chain_of_stages(problem, a, 100)
    kinds = [kind_of(problem, chain, stage) for stage in chain.stages]
    # The first operator, then attention and perceptron (the first reads what nobody else reads
    # before it, the last one's gradient comes from the loss), then the loss.
    inner = kinds[3:-3]
    assert len(inner) == 8
    assert inner[0::2] == [inner[0]] * 4
    assert inner[1::2] == [inner[1]] * 4
    assert inner[0] != inner[1]
    found = ways_of(problem, chain, chain.stages[3])
    assert len(found) >= 6
    ways = [
        [_carried(problem, chain.stages[3], stage, way) for way in found]
        if kind == inner[0]
        else ways_of(problem, chain, stage)
        for stage, kind in zip(chain.stages, kinds, strict=True)
    ]
    costs = costs_of(problem, a, chain, ways)
    for table in (costs.saved, costs.while_saving, costs.while_backward, costs.backward):
        assert np.array_equal(table[3], table[5])


def test_a_changed_cost_is_another_kind() -> None:
    problem = transformer(6)
    chain = chain_of_stages(problem, flatten(problem), 100)
    times = list(problem.time)
    times[chain.stages[5].forward[2]] += 1
    other = RematProblem(
        tuple(times), problem.size, problem.reads, problem.writes,
        turn=problem.turn, keep=problem.keep,
    )  # fmt: skip
    kinds = [kind_of(other, chain, chain.stages[i]) for i in (3, 5, 7)]
    assert kinds[0] == kinds[2] != kinds[1]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems(), most=st.integers(1, 4))
def test_ways_run_what_the_stage_needs(problem: RematProblem, most: int) -> None:
    chain = chain_of_stages(problem, flatten(problem), most)
    for stage in chain.stages:
        plain = Alone(problem, chain, stage)
        check(plain.step, range(plain.step.count))
        for way in ways_of(problem, chain, stage):
            first = [v for v in dict.fromkeys(way.backward) if v in stage.backward]
            assert first == list(stage.backward)
            there = set(way.saved) | {
                s for v in range(problem.count) if v not in stage.forward for s in problem.writes[v]
            }
            for v in way.backward:
                held = {s for w in chain.held for s in problem.writes[w]}
                made = {s for s in problem.reads[v] if problem.writer[s] >= 0}
                assert made <= there | held | chain.aside
                there.update(problem.writes[v])


@pytest.mark.parametrize(
    ("layers", "share", "gap"), [(12, 0.6, 0.002), (12, 0.4, 0.01), (24, 0.2, 0.05), (2, 0.5, 0.2)]
)
def test_close_to_the_bound_at_once(layers: int, share: float, gap: float) -> None:
    problem = transformer(layers)
    budget = int(share * check(problem, range(problem.count))[1])
    warm_up()
    solution = within(5, lambda: solve(problem, budget, "blocks", time_limit=10))
    assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
    assert solution.peak <= budget
    assert solution.gap < gap
