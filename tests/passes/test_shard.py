"""Each node of a sharded step reads what lies in its own stage, and the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
import torch
import torch.fx as fx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch._functorch._aot_autograd.descriptors import GradAOTOutput
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.compile import boxed
from fxmem.costs import Cost
from fxmem.errors import TraceError
from fxmem.lower import Lowered, lower
from fxmem.passes.shard import is_move, shard, stage_of
from fxmem.planning import rewrite
from fxmem.solvers.partition import Device
from fxmem.solvers.remat import check
from fxmem.stages.chain import StageChain, stage_chain
from fxmem.stages.shard_lower import Sides, assign, lower_stage, shard_trace, sides
from fxmem.stages.trace import capture
from fxmem.storages import is_view
from fxmem.trace import StepTrace, trace_joint
from tests.graphs import inputs, joint_graph, plain_run, same_bits
from tests.pipelines import tiny_gpt, tiny_unet

CPU = torch.device("cpu")


def chain_of(trace: StepTrace) -> StageChain:
    costs = {n: Cost(1.0, 0) for n in trace.operators}
    return stage_chain(trace, costs, (Device(1 << 40),), pieces=None)


def cut_at(trace: StepTrace, chain: StageChain, cuts: Sequence[int]) -> StepTrace:
    return shard_trace(trace, assign(trace, chain, cuts), [CPU] * (len(cuts) + 1))


def moment(node: fx.Node, found: Sides, stages: int) -> int:
    """Forward parts run in order, and backward parts after them in reverse."""
    return stage_of(node) if node in found.forward else 2 * stages - 1 - stage_of(node)


def check_places(trace: StepTrace, stages: int) -> int:
    """How many copies there are, where every value is read in the stage that holds it."""
    found, moved = sides(trace), set()
    made_by = trace.storages.made_by
    for node in trace.joint.graph.nodes:
        if node.op == "output":
            continue
        for value in node.all_input_nodes:
            assert is_move(node) or stage_of(value) == stage_of(node)
        if is_move(node):
            (source,) = node.all_input_nodes
            assert stage_of(source) != stage_of(node)
            assert (source, stage_of(node)) not in moved
            moved.add((source, stage_of(node)))
    for node in trace.operators:
        for storage in trace.storages.read_by(node):
            if made_by[storage].op == "call_function":
                assert moment(made_by[storage], found, stages) <= moment(node, found, stages)
    return len(moved)


def order_of(trace: StepTrace, stages: int) -> tuple[Lowered, list[int]]:
    """The whole step with nothing run again, as the stages' own problems have it."""
    lowered = lower(trace, {n: Cost(1.0, 0) for n in trace.operators}, 0)
    turn, found = lowered.problem.turn, sides(trace)
    before, after = [], []
    for stage in range(stages):
        part = lower_stage(lowered, trace, found, stage, 0)
        check(part.lowered.problem, range(len(part.numbers)))
        at = part.numbers.index(turn)
        before += part.numbers[:at]
        after[:0] = part.numbers[at + 1 :]
    order = [*before, turn, *after]
    assert sorted(order) == list(range(lowered.problem.count))
    return lowered, order


choices = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
graphs = st.tuples(
    st.lists(choices, min_size=2, max_size=10), st.lists(choices, min_size=1, max_size=6)
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graphs, st.lists(st.integers(0, 100), min_size=1, max_size=3), st.integers(0, 1000))
def test_any_cut_of_any_graph(shape: tuple[list, list], places: list[int], seed: int) -> None:
    joint, values = joint_graph(*shape), inputs(seed)
    torch.manual_seed(seed)
    wanted = plain_run(joint, values)
    trace = trace_joint(joint, 1)
    chain = chain_of(trace)
    cuts = sorted(p % (len(chain.forward) + 1) for p in places)
    try:
        cut = cut_at(trace, chain, cuts)
    except TraceError as error:
        assert "gaps in memory" in str(error)
        return
    check_places(cut, len(cuts) + 1)
    lowered, order = order_of(cut, len(cuts) + 1)
    for overwrite in (False, True):
        graphs = rewrite(cut, lowered.read(order), overwrite)
        *primals, tangent = values
        torch.manual_seed(seed)
        out, *saved = boxed(graphs.forward)(list(primals))
        made = [out, *boxed(graphs.backward)([*saved, tangent])]
        assert same_bits(made, wanted)
        assert same_bits(values, inputs(seed))


def traced(make: Callable) -> StepTrace:
    model, x, target, loss = make()
    joint = capture(model, (x[:4], target[:4]), loss)
    descs = joint.graph.output_node().meta["desc"]
    return trace_joint(joint, next(i for i, d in enumerate(descs) if isinstance(d, GradAOTOutput)))


@pytest.mark.parametrize("make", [pytest.param(tiny_gpt, marks=pytest.mark.slow), tiny_unet])
def test_every_cut_of_models_with_ties_and_skips(make: Callable) -> None:
    trace = traced(make)
    chain = chain_of(trace)
    places = range(1, len(chain.forward))
    tried = [(p,) for p in places] + list(combinations(places, 2))[::97]
    for cuts in tried:
        cut = cut_at(trace, chain, cuts)
        assert check_places(cut, len(cuts) + 1) >= 2  # one way, and its gradient back
        order_of(cut, len(cuts) + 1)


@pytest.mark.parametrize("make", [tiny_gpt, tiny_unet])
def test_a_parameter_and_its_gradient_lie_together(make: Callable) -> None:
    trace = traced(make)
    chain = chain_of(trace)
    for place in range(1, len(chain.forward), 5):
        joint = cut_at(trace, chain, (place,)).joint
        output = joint.graph.output_node()
        homes = {n.meta["desc"]: stage_of(n) for n in joint.graph.find_nodes(op="placeholder")}
        for node, desc in zip(output.args[0], output.meta["desc"], strict=True):
            of = getattr(desc, "grad_of", None) or getattr(desc, "mutated_input", None)
            if of is not None and node is not None:
                assert homes[of] == stage_of(node)


def test_numbers_of_a_tied_model_are_the_same_at_every_cut() -> None:
    trace = traced(tiny_gpt)
    generator = torch.Generator().manual_seed(0)

    def real(node: fx.Node) -> torch.Tensor:
        like = node.meta["val"]
        if like.dtype.is_floating_point:
            return torch.randn(like.shape, generator=generator) / 4
        return torch.randint(0, 61, like.shape, generator=generator)

    values = [real(n) for n in trace.joint.graph.find_nodes(op="placeholder")]
    wanted = [v for v in plain_run(trace.joint, values) if v is not None]
    chain = chain_of(trace)
    for place in range(1, len(chain.forward), 4):
        cut = cut_at(trace, chain, (place,))
        found = [v for v in plain_run(cut.joint, values) if v is not None]
        assert all(map(torch.equal, found, wanted))


def test_on_devices_of_their_own_copies_and_factories_name_them() -> None:
    trace = traced(tiny_gpt)
    chain = chain_of(trace)
    devices = [CPU, torch.device("meta")]
    joint = shard(trace.joint, assign(trace, chain, (len(chain.forward) // 2,)), devices)
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        if node.op == "output" or not isinstance(value, torch.Tensor):
            continue
        assert value.device == devices[stage_of(node)]
        if is_move(node) or (not is_view(node) and node.kwargs.get("device") is not None):
            assert node.kwargs["device"] == devices[stage_of(node)]


def test_what_has_gaps_in_memory_cannot_cross() -> None:
    aten = torch.ops.aten

    def step(primals_1: torch.Tensor, tangents_1: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = aten.new_empty_strided.default(primals_1, [12, 16], [20, 1])
        return aten.copy.default(wide, primals_1) * 2, tangents_1 * 2

    trace = trace_joint(make_fx(step, tracing_mode="fake")(*inputs()[:2]), 1)
    stages = {n: int(n.target is aten.mul.Tensor) for n in trace.operators}
    with pytest.raises(TraceError, match="gaps in memory"):
        shard(trace.joint, stages, [CPU, CPU])
