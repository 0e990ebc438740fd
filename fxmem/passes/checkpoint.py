"""What the user marked with `torch.utils.checkpoint` is run again in the backward part.

AOTAutograd leaves the marks of checkpointed regions, and of their policies, on the nodes. A value
marked to be recomputed must not live from forward to backward: what backward reads in its place
is a second node, which runs after the turn. A value marked to be saved runs once (see `lower`).
"""

from __future__ import annotations

from typing import Any

import torch.fx as fx
from torch._functorch.partitioners import must_recompute  # private; same in 2.11 to 2.13
from torch.utils.checkpoint import CheckpointPolicy

from ..runtime.random import replay
from ..storages import is_effect, is_item, is_random, is_view
from .draws import device_of, keep_state
from .module import module_of

#: In a node's meta: the name of the node of which it is the second run.
AGAIN = "again_of"


def must_save(node: fx.Node) -> bool:
    """Did the user ask that this value be kept for the backward part?"""
    return node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE


def run_again(joint: fx.GraphModule, forward_outputs: int) -> fx.GraphModule:
    """Return a new joint graph in which backward reads second runs of what is marked so.

    They stand where backward first needs them, each after those that it needs itself.

    Parameters
    ----------
    joint : torch.fx.GraphModule
    forward_outputs : int
        How many of the graph's outputs belong to the forward part.
    """
    if not any(must_recompute(node) for node in joint.graph.nodes):
        return joint
    graph = fx.Graph()
    result: Any = graph.graph_copy(joint.graph, {})
    graph.output(result).meta = dict(joint.graph.output_node().meta)
    forward = _needed_by(result[:forward_outputs])
    marked = {n for n in graph.nodes if must_recompute(n) and not _once(n)}
    marked -= _leaving(marked, forward)
    again: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node not in forward and node not in marked and node.op == "call_function":
            for argument in marked.intersection(node.all_input_nodes):
                with graph.inserting_before(node):
                    second = _second(graph, argument, marked, again)
                node.replace_input_with(argument, second)
    graph.eliminate_dead_code(lambda n: n.is_impure())
    graph.lint()
    return module_of(joint, graph)


def _needed_by(outputs: Any) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = [v for v in outputs if isinstance(v, fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _once(node: fx.Node) -> bool:
    """Must this not run twice, whatever its mark says?"""
    return node.op != "call_function" or (not (is_view(node) or is_item(node)) and is_effect(node))


def _leaving(marked: set[fx.Node], forward: set[fx.Node]) -> set[fx.Node]:
    """Values that forward reads outside of their region: autograd saves them there."""

    def region(node: fx.Node) -> object:
        return node.meta.get("ac_graph_id") if node in marked else None

    return {
        node
        for node in marked
        if any(
            user.op == "output" or (user in forward and region(user) != region(node))
            for user in node.users
        )
    }


def _second(
    graph: fx.Graph, node: fx.Node, marked: set[fx.Node], again: dict[fx.Node, fx.Node]
) -> fx.Node:
    if node not in again:

        def argument(value: fx.Node) -> fx.Node:
            return _second(graph, value, marked, again) if value in marked else value

        args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
        target: Any = node.target
        if is_random(node):
            args, target = (*_drawn(graph, node), *args), replay
        second = graph.call_function(target, args, kwargs)
        second.meta = {k: v for k, v in node.meta.items() if k != "recompute"}
        second.meta[AGAIN] = node.name
        again[node] = second
    return again[node]


def _drawn(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, str, Any]:
    """What `replay` needs to draw as ``node`` did: the generator's state just before it."""
    with graph.inserting_before(node):
        return keep_state(graph, node), device_of(node), node.target
