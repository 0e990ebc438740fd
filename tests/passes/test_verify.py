"""The verifier catches what a broken pass would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.costs import Cost
from fxmem.lower import lower
from fxmem.passes.recompute import recompute
from fxmem.passes.reuse import reuse
from fxmem.passes.split import SplitStep, split
from fxmem.passes.verify import PassError, verify_layout, verify_split
from fxmem.runtime.random import turn
from fxmem.trace import trace_joint
from tests.graphs import joint_graph

aten = torch.ops.aten


def step() -> tuple[fx.GraphModule, fx.GraphModule]:
    joint = joint_graph(
        [(0, 0, 1), (2, 2, 2), (13, 3, 2), (1, 4, 2), (7, 5, 5), (13, 2, 2)], [(1, 0, 3)]
    )
    trace = trace_joint(joint, 1)
    lowered = lower(trace, {n: Cost(1.0, 0) for n in trace.operators}, 0)
    order = [*range(lowered.problem.count)]
    return trace.joint, recompute(trace.joint, trace.storages, 1, lowered.read(order))


def find(graph: fx.GraphModule, target: object, which: int = 0) -> fx.Node:
    return [n for n in graph.graph.nodes if n.target == target][which]


def swap_arguments(graph: fx.GraphModule) -> None:
    node = find(graph, aten.mul.Tensor)
    node.args = node.args[::-1]


def read_another(graph: fx.GraphModule) -> None:
    node = find(graph, aten.tanh.default)
    node.args = (find(graph, "primals_1_1"),)


def change_output(graph: fx.GraphModule) -> None:
    output = graph.graph.output_node()
    (first, second, third) = output.args[0]
    output.args = ((first, third, second),)


def drop_draw(graph: fx.GraphModule) -> None:
    node = find(graph, aten.native_dropout.default)
    for item in list(node.users):
        for user in list(item.users):
            user.replace_input_with(item, node.args[0])
        graph.graph.erase_node(item)
    graph.graph.erase_node(node)


def overwrite_too_early(graph: fx.GraphModule) -> None:
    node = find(graph, aten.tanh.default)
    assert len(node.args[0].users) > 1
    node.target, node.kwargs = aten.tanh.out, {"out": node.args[0]}


def tangent_before_turn(graph: fx.GraphModule) -> None:
    mark = find(graph, turn)
    first = next(n for n in graph.graph.nodes if n.op == "call_function")
    first.prepend(mark)
    late = find(graph, aten.mul.Tensor, -1)
    late.append(mark)


def no_turn(graph: fx.GraphModule) -> None:
    graph.graph.erase_node(find(graph, turn))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (swap_arguments, "reads"),
        (read_another, "reads"),
        (change_output, "became"),
        (drop_draw, "."),
        (overwrite_too_early, "wrote over"),
        (tangent_before_turn, "uses a tangent before the turn"),
        (no_turn, "before the turn"),
    ],
)
def test_damage_is_found(damage: Callable[[fx.GraphModule], None], message: str) -> None:
    joint, laid_out = step()
    verify_layout(joint, laid_out)
    verify_layout(joint, reuse(laid_out))
    damage(laid_out)
    with pytest.raises(PassError, match=message):
        verify_layout(joint, laid_out)


def keywords(x: torch.Tensor, tangents_1: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Text and a tensor among the keyword arguments."""
    y = aten.gelu.default(x, approximate="tanh")
    z = aten.searchsorted.Tensor(y, y * 2, right=True, sorter=aten.argsort.default(y))
    return z, aten.gelu_backward.default(tangents_1, x, approximate="tanh")


def change_number(graph: fx.GraphModule) -> None:
    find(graph, aten.gelu.default).kwargs = {"approximate": "none"}


def change_keyword(graph: fx.GraphModule) -> None:
    node = find(graph, aten.searchsorted.Tensor)
    node.kwargs = {**node.kwargs, "sorter": node.args[0]}


def drop_keyword(graph: fx.GraphModule) -> None:
    node = find(graph, aten.searchsorted.Tensor)
    node.kwargs = {"right": True}


@pytest.mark.parametrize("damage", [change_number, change_keyword, drop_keyword])
def test_damage_to_keywords_is_found(damage: Callable[[fx.GraphModule], None]) -> None:
    x = torch.ones(3, 4)
    trace = trace_joint(make_fx(keywords, tracing_mode="fake")(x, x.clone()), 1)
    lowered = lower(trace, {n: Cost(1.0, 0) for n in trace.operators}, 0)
    order = lowered.read(range(lowered.problem.count))
    laid_out = recompute(trace.joint, trace.storages, 1, order)
    verify_layout(trace.joint, laid_out)
    verify_layout(trace.joint, reuse(laid_out))
    damage(laid_out)
    with pytest.raises(PassError, match="reads"):
        verify_layout(trace.joint, laid_out)


def test_swapped_draws_are_found() -> None:
    joint, laid_out = step()
    first, second = (n for n in laid_out.graph.nodes if n.target is aten.native_dropout.default)
    first.meta["of"], second.meta["of"] = second.meta["of"], first.meta["of"]
    with pytest.raises(PassError):
        verify_layout(joint, laid_out)


def test_split_graphs() -> None:
    _, laid_out = step()
    good = split(laid_out, 1)
    verify_split(good)
    with pytest.raises(PassError, match="turn was left"):
        verify_split(SplitStep(laid_out, good.backward, good.saved))
    with pytest.raises(PassError, match="has a tangent"):
        verify_split(SplitStep(good.backward, good.backward, good.saved))
