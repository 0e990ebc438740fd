"""The stage in which each operator of a joint graph runs, given where its forward part is cut.

A backward operator runs where the forward operator runs whose gradient it is (autograd numbers
both alike), or earlier if a gradient that it reads was made earlier. Views, and what is computed
from nothing, are made anew where they are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch.fx as fx
from torch._functorch._aot_autograd.descriptors import (  # private; there since 2.9
    GradAOTOutput,
    InputMutationAOTOutput,
)

from ..storages import is_item, is_random, is_view
from .split import is_tangent


def forward_operators(joint: fx.GraphModule) -> tuple[fx.Node, ...]:
    """Operators that the forward outputs and the new values of buffers depend on, in order."""
    reached: set[fx.Node] = set()
    waiting = [n for n, d in outputs(joint) if not isinstance(d, GradAOTOutput)]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting.extend(node.all_input_nodes)
    free = _free(joint.graph)
    return tuple(
        n
        for n in joint.graph.nodes
        if n in reached and n.op == "call_function" and not _follows(n) and n not in free
    )


def outputs(joint: fx.GraphModule) -> list[tuple[fx.Node, Any]]:
    """Results of the step, each with its descriptor."""
    output = joint.graph.output_node()
    values: Any = output.args[0]
    found = zip(values, output.meta["desc"], strict=True)
    return [(n, d) for n, d in found if isinstance(n, fx.Node)]


def _follows(node: fx.Node) -> bool:
    """Is it only a look at another value, or one result of an operator?"""
    return is_view(node) or is_item(node)


def _free(graph: fx.Graph) -> set[fx.Node]:
    """Constants and what is computed from them alone."""
    free: set[fx.Node] = set()
    for node in graph.nodes:
        computes = node.op == "call_function" and not is_random(node)
        if node.op == "get_attr" or (computes and all(a in free for a in node.all_input_nodes)):
            free.add(node)
    return free


def _differentiable(joint: fx.GraphModule, loss: fx.Node) -> set[fx.Node]:
    """What autograd has a node for: on a way from a value with a gradient to the loss.

    Anything else, such as the new value of a buffer, bears the number of a neighbour.
    """
    wanted = {d.grad_of for _, d in outputs(joint) if isinstance(d, GradAOTOutput)}
    needs = {n for n in joint.graph.find_nodes(op="placeholder") if n.meta.get("desc") in wanted}
    for node in joint.graph.nodes:
        if any(a in needs for a in node.all_input_nodes):
            needs.add(node)
    reached: set[fx.Node] = set()
    waiting = [loss]
    while waiting:
        node = waiting.pop()
        if node in needs and node not in reached:
            reached.add(node)
            waiting.extend(node.all_input_nodes)
    return reached


class Homes:
    """The stage of each operator.

    Parameters
    ----------
    joint, cuts
        As of `passes.stages.cut`.

    Attributes
    ----------
    stage_of : dict of fx.Node to int
        Of every operator, item and tangent; views and free values have none.
    """

    def __init__(self, joint: fx.GraphModule, cuts: Sequence[int]) -> None:
        self.joint, self.nodes, self.last = joint, list(joint.graph.nodes), len(cuts)
        self.free = _free(joint.graph)
        self.stage_of = self._assign(cuts)

    def bases(self, node: fx.Node) -> list[fx.Node]:
        """What ``node`` reads, past the views and free values that are made where it runs."""
        found: list[fx.Node] = []
        waiting = list(node.all_input_nodes)
        while waiting:
            value = waiting.pop()
            if is_view(value) and value.op != "placeholder":
                waiting.extend(value.all_input_nodes)
            elif value not in self.free:
                found.append(value)
        return found

    def base(self, node: fx.Node) -> fx.Node:
        """What a view looks at."""
        while is_view(node):
            node = node.all_input_nodes[0]
        return node

    def home(self, node: fx.Node) -> int:
        """The stage of a value, or of what it looks at."""
        return self.stage_of.get(self.base(node), 0)

    def _assign(self, cuts: Sequence[int]) -> dict[fx.Node, int]:
        """The stage of every operator, item and tangent."""
        stage: dict[fx.Node, int] = {}
        by_sequence: dict[Any, int] = {}
        for i, node in enumerate(forward_operators(self.joint)):
            stage[node] = bisect_right(cuts, i)
        loss = next(
            n
            for n, d in outputs(self.joint)
            if not isinstance(d, (InputMutationAOTOutput, GradAOTOutput))
        )
        while _follows(loss):
            loss = loss.all_input_nodes[0]
        stage[loss] = self.last
        differentiable = _differentiable(self.joint, loss)
        for node in self.nodes:  # a cut must never lead back
            if node in stage:
                earlier = [stage[b] for b in self.bases(node) if b in stage]
                stage[node] = max([stage[node], *earlier])
                if node not in differentiable:
                    continue
                number = node.meta.get("seq_nr")
                by_sequence[number] = max(by_sequence.get(number, 0), stage[node])
            elif is_item(node) and node.all_input_nodes[0] in stage:
                stage[node] = stage[node.all_input_nodes[0]]
        late = {n for n in self.nodes if is_tangent(n)}
        stage.update(dict.fromkeys(late, self.last))
        for node in self.nodes:
            if any(a in late for a in node.all_input_nodes):
                late.add(node)
            if node in stage or node.op != "call_function" or node in self.free or is_view(node):
                continue
            if is_item(node):
                stage[node] = stage[node.all_input_nodes[0]]
                continue
            bases = [b for b in self.bases(node) if b in stage]
            wanted = by_sequence.get(node.meta.get("seq_nr"))
            if node in late:
                bound = min(stage[b] for b in bases if b in late)
                stage[node] = bound if wanted is None else min(bound, wanted)
            else:
                stage[node] = max([wanted or 0, *(stage[b] for b in bases)])
        return stage
