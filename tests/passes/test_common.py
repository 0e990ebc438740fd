"""Repeats are merged as upstream's pass merges them, and no more than may be."""

from __future__ import annotations

import torch
import torch.fx as fx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._functorch.compile_utils import fx_graph_cse

from fxmem.passes.common import merge_common
from tests.graphs import inputs, joint_graph, plain_run, same_bits
from tests.passes.test_simplify import targets, traced

aten = torch.ops.aten
PHASES = (Phase.generate, Phase.shrink)
# Few sources and operators: repeats are common.
choice = st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 2))


def merged(graph: fx.GraphModule) -> fx.GraphModule:
    return fx.GraphModule(graph, merge_common(graph.graph))


@settings(max_examples=60, deadline=None, derandomize=True, phases=PHASES)
@given(st.lists(choice, min_size=2, max_size=14), st.lists(choice, min_size=1, max_size=6))
def test_as_many_as_upstream_and_the_same_numbers(forward: list, backward: list) -> None:
    joint = joint_graph(forward, backward)
    found, wanted = merged(joint), fx_graph_cse(joint.graph)
    assert len(found.graph.nodes) <= len(wanted.nodes)
    results = []
    for graph in (joint, found):
        torch.manual_seed(3)
        results.append((*plain_run(graph, inputs()), torch.get_rng_state()))
    assert same_bits(*results)


def test_arguments_of_other_types_differ() -> None:
    def mixed(a: Tensor) -> tuple[Tensor, ...]:
        parts = (torch.full_like(a, v) for v in (1, 1.0, True, 0.0, -0.0))
        return tuple(torch.sin(part) for part in parts)

    graph = traced(mixed, (3,))
    assert targets(merged(graph)) == targets(graph)


def test_parts_of_one_call_are_merged() -> None:
    def halves(a: Tensor) -> tuple[Tensor]:
        return (torch.split(a, 2)[0] + torch.split(a, 2)[1],)

    found = targets(merged(traced(halves, (4,))))
    assert found.count(aten.split.Tensor) == 1


def test_outputs_stay_apart() -> None:
    graph = traced(lambda a: (torch.tanh(a), torch.tanh(a), torch.tanh(a) + 1), (3,))
    first, second, _ = merged(graph)(torch.ones(3))
    assert first.data_ptr() != second.data_ptr()


def test_what_is_written_to_is_read_anew() -> None:
    def write(a: Tensor) -> tuple[Tensor]:
        before = torch.tanh(a)
        a.copy_(a * 2)
        return (before + torch.tanh(a),)

    graph = traced(write, (3,))
    assert targets(merged(graph)).count(aten.tanh.default) == 2
    x = torch.ones(3)
    assert torch.equal(merged(graph)(x.clone())[0], graph(x.clone())[0])


def test_memory_that_is_not_filled_is_not_shared() -> None:
    def made(a: Tensor) -> tuple[Tensor]:
        one, other = torch.empty_like(a), torch.empty_like(a)
        one.fill_(1.0)
        other.fill_(2.0)
        return (one + other + a,)

    graph = traced(made, (3,))
    assert torch.equal(merged(graph)(torch.zeros(3))[0], torch.full((3,), 3.0))
