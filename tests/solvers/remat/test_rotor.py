"""Rotor's plans against enumeration on chains, and its stages on steps of known shape."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import within

from fxmem.solvers.remat import RematProblem, check, solve, warm_up
from fxmem.solvers.remat.arrays import flatten
from fxmem.solvers.remat.chainplan import FOREVER, ChainCosts, ChainPlan, Step
from fxmem.solvers.remat.stages import chain_of_stages, local_peak
from tests.solvers.remat.remat_cases import problems
from tests.solvers.remat.test_solve import segments
from tests.solvers.remat.transformer import transformer


@st.composite
def costs(draw: st.DrawFn) -> ChainCosts:
    length, ways = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))

    def row(low: int, high: int) -> np.ndarray:
        return rng.integers(low, high, length)

    out = row(0, 4)
    extra, more, most = (rng.integers(0, 4, (length, ways)) for _ in range(3))
    saved = out[:, None] + extra
    return ChainCosts(
        row(1, 9), out, out + row(0, 3), row(0, 2), row(0, 3),
        saved, saved + more, saved + most, rng.integers(1, 9, (length, ways)),
    )  # fmt: skip


def recursion(c: ChainCosts, memory: int) -> int:
    """The definition of `chainplan`, top down."""

    @cache
    def least(s: int, t: int, m: int) -> int:
        after, best = int(c.made[s + 1 : t + 1].sum()), FOREVER
        for k in range(c.saved.shape[1]):
            need = max(c.gradient[t] + c.while_saving[s, k], c.while_backward[s, k] + after)
            if need <= m:
                rest = 0 if s == t else least(s + 1, t, m - int(c.saved[s, k]))
                best = min(best, int(c.forward[s] + c.backward[s, k]) + rest)
        for split in range(s + 1, t + 1):
            needs = [
                c.gradient[t] + c.passing[j] + (c.out[j - 1] if j > s else 0)
                for j in range(s, split)
            ]
            if max(needs) <= m:
                right = least(split, t, m - int(c.out[split - 1]))
                left = least(s, split - 1, m - int(c.made[split : t + 1].sum()))
                best = min(best, int(c.forward[s:split].sum()) + right + left)
        return min(best, FOREVER)

    return least(0, len(c.forward) - 1, memory)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(c=costs(), memory=st.integers(1, 30))
def test_table_and_plans_are_those_of_the_recursion(c: ChainCosts, memory: int) -> None:
    plan = ChainPlan(c, memory, memory)
    last = len(c.forward) - 1
    for m in range(memory + 1):
        assert plan.table[last * (last + 1) // 2, m] == recursion(c, m)
    for m in plan.memories():
        steps = plan.steps(m)
        spent = sum(c.backward[s.stage, s.way] if s.backward else c.forward[s.stage] for s in steps)
        assert spent == recursion(c, m)
        ends = [s for s in steps if s.backward]
        assert [s.stage for s in ends] == list(range(last, -1, -1))
        for end in ends:  # a stage goes backward from its own last run, which saved it
            runs = [s for s in steps[: steps.index(end)] if s.stage == end.stage]
            assert runs[-1] == Step(end.stage, end.way)


def test_a_step_of_equal_layers_is_a_chain() -> None:
    problem = segments(3, 4)
    chain = chain_of_stages(problem, flatten(problem), 100)
    assert [stage.forward for stage in chain.stages] == [(v,) for v in range(12)]
    assert [stage.result for stage in chain.stages] == [(v,) for v in range(11)] + [()]
    assert not chain.held
    thin = chain_of_stages(problem, flatten(problem), 4)
    assert [stage.forward for stage in thin.stages] == [
        (0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11),
    ]  # fmt: skip
    # A backward operator that reads a cut's result finds it in the stage after the cut.
    assert [stage.backward for stage in thin.stages] == [
        (23, 24), (20, 21, 22), (17, 18, 19), (12, 13, 14, 15, 16),
    ]  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(), most=st.integers(1, 8))
def test_stages_partition_the_operators_and_cut_the_forward_part(
    problem: RematProblem, most: int
) -> None:
    chain = chain_of_stages(problem, flatten(problem), most)
    assert len(chain.stages) <= most
    forward = [v for stage in chain.stages for v in stage.forward]
    backward = [v for stage in reversed(chain.stages) for v in stage.backward]
    assert sorted(forward + backward) == list(range(problem.count))
    for stage in chain.stages:
        inside = set(stage.forward)
        for v in stage.forward:
            for s in problem.reads[v]:
                w = problem.writer[s]
                assert w < 0 or w in inside or s in chain.aside or s in stage.source


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems())
def test_local_peak_is_that_of_the_judge(problem: RematProblem) -> None:
    if problem.turn is not None:
        return  # what may be overwritten across the turn is left to the judge
    peak = local_peak(problem, range(problem.count), (), problem.keep)
    assert peak + problem.resident_bytes == check(problem, range(problem.count))[1]


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.15])
def test_transformer_at_any_budget(share: float) -> None:
    problem = transformer(12)
    budget = int(share * check(problem, range(problem.count))[1])
    warm_up()
    solution = within(3.3, lambda: solve(problem, budget, "rotor", time_limit=3))
    assert solution.status == "feasible"
    assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
    assert solution.peak <= budget
    recomputed = {0.9: 1.06, 0.6: 1.18, 0.3: 1.33, 0.15: 1.43}[share]
    assert solution.total_time < recomputed * problem.base_time


def test_no_chain_no_time_no_budget() -> None:
    problem = segments(8, 4)
    given_order = tuple(range(problem.count))
    assert solve(problem, None, "rotor").sequence == given_order
    refused = solve(problem, 2 * problem.floor, "rotor", time_limit=0)
    assert (refused.status, refused.sequence) == ("unknown", given_order)
