"""Fewer nodes, the same numbers."""

from __future__ import annotations

import torch
import torch.fx as fx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.passes.simplify import simplify
from tests.graphs import inputs, joint_graph, plain_run, same_bits

aten = torch.ops.aten
PHASES = (Phase.generate, Phase.shrink)  # explaining a failure would trace all of torch
choice = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))


def traced(function, *shapes: tuple[int, ...]) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*(torch.randn(s) for s in shapes))


def targets(graph: fx.GraphModule) -> list:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"]


@settings(max_examples=30, deadline=None, derandomize=True, phases=PHASES)
@given(st.lists(choice, min_size=1, max_size=12), st.lists(choice, min_size=1, max_size=6))
def test_same_numbers(forward: list, backward: list) -> None:
    joint = joint_graph(forward, backward)
    results = []
    for graph in (joint, simplify(joint)):
        torch.manual_seed(3)
        results.append((*plain_run(graph, inputs()), torch.get_rng_state()))
    assert same_bits(*results)


def test_the_given_graph_is_left_alone() -> None:
    joint = joint_graph([(2, 0, 0), (2, 0, 0)], [(0, 0, 0)])
    before = str(joint.graph)
    simplify(joint)
    assert str(joint.graph) == before


def test_repeats_are_merged() -> None:
    graph = simplify(traced(lambda a: (torch.tanh(a) * torch.tanh(a),), (3, 4)))
    assert targets(graph) == [aten.tanh.default, aten.mul.Tensor]


def test_draws_are_never_merged_nor_dropped() -> None:
    def draw(a: Tensor) -> tuple[Tensor]:
        torch.rand_like(a)
        return (a + torch.rand_like(a) + torch.rand_like(a),)

    assert targets(simplify(traced(draw, (3,)))).count(aten.rand_like.default) == 3


def test_unread_draws_stay_while_torch_compile_is_at_work() -> None:
    """There the default calls random draws pure, and the generator would end elsewhere."""

    def draw(a: Tensor) -> tuple[Tensor]:
        torch.rand_like(a)
        return (a * 2,)

    graph = traced(draw, (3,))
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        assert aten.rand_like.default in targets(simplify(graph))


def test_empty_views_and_needless_copies_go() -> None:
    def step(a: Tensor) -> tuple[Tensor]:
        h = torch.tanh(a)
        return (aten.detach(h).view(3, 4).clone() * aten.alias(h),)

    assert targets(simplify(traced(step, (3, 4)))) == [aten.tanh.default, aten.mul.Tensor]


def test_copies_that_matter_stay() -> None:
    def inputs_and_outputs(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = torch.tanh(a)
        # Of an input, of an output, in another layout, and of a small part of something large.
        layout = h.clone(memory_format=torch.contiguous_format).t().contiguous()
        part = torch.exp(h)[:1].clone()
        return a.clone(), h, h.clone(), layout.sum() + part.sum()

    kept = targets(simplify(traced(inputs_and_outputs, (3, 4))))
    assert kept.count(aten.clone.default) == 5


def test_views_among_the_outputs_stay() -> None:
    graph = simplify(traced(lambda a: (aten.alias(torch.tanh(a)),), (3, 4)))
    assert aten.alias.default in targets(graph)
