"""All passes together: any valid schedule of any graph computes what the graph does."""

from __future__ import annotations

import random

import pytest
import torch
import torch.fx as fx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fxmem.allocator import record
from fxmem.compile import boxed
from fxmem.costs import Cost, MeasuredCosts
from fxmem.lower import Lowered, lower
from fxmem.passes.recompute import recompute
from fxmem.passes.reuse import reuse
from fxmem.passes.split import SplitStep
from fxmem.planning import costs_of, rewrite
from fxmem.runtime.random import turn
from fxmem.simulate import simulate
from fxmem.solvers.remat import check, replay
from fxmem.storages import operators
from fxmem.trace import StepTrace, trace_joint
from tests.graphs import inputs, joint_graph, plain_run, same_bits
from tests.schedules import lazy_schedule, random_schedule

choices = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
graphs = st.tuples(
    st.lists(choices, min_size=1, max_size=12), st.lists(choices, min_size=1, max_size=8)
)
relaxed = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),  # explaining a failure would trace all of torch
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def lowered_step(joint: fx.GraphModule, costs: dict | None = None) -> tuple[StepTrace, Lowered]:
    trace = trace_joint(joint, 1)
    free = {n: Cost(1.0, 0) for n in trace.operators}
    return trace, lower(trace, costs or free, resident_bytes=0)


def schedule(lowered: Lowered, seed: int) -> list[int]:
    rng = random.Random(seed)
    if seed % 3 == 0:
        return lazy_schedule(lowered.problem, rng)
    return random_schedule(lowered.problem, rng, extra=rng.choice((0.0, 0.3, 1.0)))


def run_split(step: SplitStep, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Forward, then backward, as autograd would call them."""
    *primals, tangent = values
    out, *saved = boxed(step.forward)(list(primals))
    return [out, *boxed(step.backward)([*saved, tangent])]


@relaxed
@given(graphs, st.integers(0, 2**20))
def test_any_schedule_of_any_graph(shape: tuple[list, list], seed: int) -> None:
    joint = joint_graph(*shape)
    values = inputs(seed)
    torch.manual_seed(seed)
    wanted = plain_run(joint, values)
    generator = torch.get_rng_state()
    trace, lowered = lowered_step(joint)
    order = schedule(lowered, seed)
    check(lowered.problem, order)
    for overwrite in (False, True):
        step = rewrite(trace, lowered.read(order), overwrite)
        torch.manual_seed(seed)
        assert same_bits(run_split(step, values), wanted)
        assert torch.equal(torch.get_rng_state(), generator)
        assert same_bits(values, inputs(seed))  # nobody wrote to an input


@relaxed
@given(graphs, st.integers(0, 2**20))
def test_simulation_is_what_the_allocator_reports(shape: tuple[list, list], seed: int) -> None:
    joint = joint_graph(*shape)
    trace = trace_joint(joint, 1)
    costs = _table()(list(trace.operators))
    lowered = lower(trace, costs, resident_bytes=0)
    step = rewrite(trace, lowered.read(schedule(lowered, seed)), True)
    simulation = simulate(step, costs_of(step, costs), 0, 1)
    forward, backward = boxed(step.forward), boxed(step.backward)
    *primals, tangent = inputs(seed)

    def whole() -> None:
        out, *saved = forward(list(primals))
        gradient = tangent.clone()  # of the user's loss; autograd holds it to the end
        arguments = [*saved, gradient]
        saved.clear()
        backward(arguments)
        del out, gradient

    whole()
    assert record(whole).peak == simulation.peak_bytes


@relaxed
@given(graphs, st.integers(0, 2**20))
def test_problem_foretells_the_simulation(shape: tuple[list, list], seed: int) -> None:
    """In traced order the solver's own replay gives just the simulated peak."""
    trace, lowered = lowered_step(joint_graph(*shape, draws=False))
    order = range(lowered.problem.count)
    held = replay(lowered.problem, order)
    held[lowered.problem.turn] = 0  # room for the user's own loss, which is no operator of ours
    step = rewrite(trace, lowered.read(order), True)
    free = {n: Cost(1.0, 0) for n in trace.operators}
    assert simulate(step, costs_of(step, free), 0, 1).peak_bytes == max(held)


@relaxed
@given(graphs, st.integers(0, 2**20))
def test_backward_twice(shape: tuple[list, list], seed: int) -> None:
    """With ``retain_graph=True`` saved values are read again: none may be written over."""
    trace, lowered = lowered_step(joint_graph(*shape))
    step = rewrite(trace, lowered.read(schedule(lowered, seed)), True)
    *primals, tangent = inputs(seed)
    _, *saved = boxed(step.forward)(list(primals))
    backward = boxed(step.backward)
    torch.manual_seed(seed)
    once = [g.clone() for g in backward([*saved, tangent])]
    torch.manual_seed(seed)
    assert same_bits(once, backward([*saved, tangent]))


@pytest.mark.parametrize("overwrite", [False, True])
def test_traced_order_adds_no_operator(overwrite: bool) -> None:
    joint = joint_graph([(0, 0, 1), (2, 2, 2), (5, 3, 2)], [(1, 0, 3)])
    trace, lowered = lowered_step(joint)
    laid_out = recompute(trace.joint, trace.storages, 1, lowered.read(range(lowered.problem.count)))
    if overwrite:
        laid_out = reuse(laid_out)
    computing = [n.meta["of"] for n in operators(laid_out.graph) if n.target is not turn]
    assert computing == [n.name for n in trace.operators]


def _table(tables: list[MeasuredCosts] = []) -> MeasuredCosts:  # noqa: B006 - one for all
    if not tables:
        tables.append(MeasuredCosts(torch.device("cpu"), cache=False))
    return tables[0]
