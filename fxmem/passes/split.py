"""Cut a laid-out joint graph at its turn into the forward and the backward graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from ..runtime.random import turn


@dataclass(frozen=True)
class SplitStep:
    """The two graphs of a step.

    Attributes
    ----------
    forward : fx.GraphModule
        Inputs: the primals. Outputs: the step's forward outputs, then the saved values.
    backward : fx.GraphModule
        Inputs: the saved values, then the tangents. Outputs: the gradients.
    saved : tuple of str
        Names of the saved values, in order.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: tuple[str, ...]


def is_tangent(node: fx.Node) -> bool:
    """Is this placeholder the gradient of a forward output?"""
    return node.op == "placeholder" and "tangents" in str(node.target)


def split(joint: fx.GraphModule, forward_outputs: int) -> SplitStep:
    """Split ``joint``, in which one node marks the turn, into forward and backward."""
    nodes = list(joint.graph.nodes)
    mark = next(i for i, node in enumerate(nodes) if node.target is turn)
    outputs: Any = joint.graph.output_node().args[0]
    before = {n for n in nodes[:mark] if n.op != "get_attr" and not is_tangent(n)}
    left, gradients = outputs[:forward_outputs], outputs[forward_outputs:]
    later = [n for n in nodes[mark + 1 :] if n.op != "output"]
    read_later = [a for n in later for a in n.all_input_nodes]
    read_later += [g for g in gradients if isinstance(g, fx.Node)]
    saved = tuple(dict.fromkeys(a for a in read_later if a in before))

    forward = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in nodes[:mark]:
        if not is_tangent(node):
            env[node] = forward.node_copy(node, env.__getitem__)
    forward.output(fx.map_arg((*left, *saved), env.__getitem__))

    backward = fx.Graph()
    env = {}
    for node in saved:
        env[node] = backward.placeholder(node.name)
        env[node].meta.update(node.meta)
    for node in nodes[:mark]:
        if is_tangent(node) or node.op == "get_attr":
            env[node] = backward.node_copy(node, env.__getitem__)
    for node in later:
        env[node] = backward.node_copy(node, env.__getitem__)
    backward.output(fx.map_arg(tuple(gradients), env.__getitem__))

    for graph in (forward, backward):
        # The default calls random draws pure while torch.compile is at work.
        graph.eliminate_dead_code(lambda n: n.is_impure())
        graph.lint()
    return SplitStep(
        fx.GraphModule(joint, forward),
        fx.GraphModule(joint, backward),
        tuple(node.name for node in saved),
    )
