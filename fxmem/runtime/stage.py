"""Run one stage's graphs, microbatch by microbatch, and sum up its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ..compile import boxed
from ..passes.split import SplitStep, is_tangent
from ..passes.stages import Stage
from ..storages import is_item

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class SplitBackward:
    """A backward graph in two: what earlier stages wait for, and the rest.

    Attributes
    ----------
    inputs : fx.GraphModule
        From saved values and tangents to gradients for earlier stages, then ``kept`` values.
    weights : fx.GraphModule
        From ``kept`` values to gradients of parameters.
    kept : tuple of fx.Node
        Nodes of the whole graph.
    """

    inputs: fx.GraphModule
    weights: fx.GraphModule
    kept: tuple[fx.Node, ...]


def split_backward(backward: fx.GraphModule, sent: int) -> SplitBackward:
    """Split a backward graph after its first ``sent`` outputs; nothing in it may write in place."""
    outputs: Any = backward.graph.output_node().args[0]
    needed: set[fx.Node] = set()
    waiting = [n for n in outputs[:sent] if isinstance(n, fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    nodes = [n for n in backward.graph.nodes if n.op != "output"]
    here = {n for n in nodes if n in needed or n.op in ("placeholder", "get_attr")}
    # One result of several is taken at once, so that the others need not be kept with it.
    here |= {n for n in nodes if is_item(n) and n.all_input_nodes[0] in here}
    later = [n for n in nodes if n not in here]
    read = [a for n in later for a in n.all_input_nodes] + list(outputs[sent:])
    kept = tuple(dict.fromkeys(a for a in read if a in here and a.op != "get_attr"))

    first, second = fx.Graph(), fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        if node in here:
            env[node] = first.node_copy(node, env.__getitem__)
    first.output(fx.map_arg((*outputs[:sent], *kept), env.__getitem__))
    env = {}
    for node in kept:
        env[node] = second.placeholder(node.name)
        env[node].meta.update(node.meta)
    for node in nodes:
        if node in here and node.op != "get_attr":
            continue
        env[node] = second.node_copy(node, env.__getitem__)
    second.output(fx.map_arg(tuple(outputs[sent:]), env.__getitem__))
    for graph in (first, second):
        graph.eliminate_dead_code(lambda n: n.is_impure())
        graph.lint()
    return SplitBackward(fx.GraphModule(backward, first), fx.GraphModule(backward, second), kept)


class StageRun:
    """One stage at work.

    Parameters
    ----------
    stage : Stage
    graphs : SplitStep
        Of the planned stage.
    parameters, buffers : mapping from name to torch.Tensor
        Those of this stage; gradients are added to ``.grad``, buffers are written to.
    scale : float
        Of each microbatch's gradients: 1 / microbatches for the mean of the losses.
    splits : bool
        Does backward run in two parts?
    """

    def __init__(
        self,
        stage: Stage,
        graphs: SplitStep,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        scale: float,
        splits: bool,
    ) -> None:
        self.stage, self.parameters, self.buffers = stage, parameters, buffers
        tangents = [n.meta["val"] for n in stage.joint.graph.nodes if is_tangent(n)]
        self.start = torch.full((), scale, dtype=tangents[0].dtype) if stage.is_last else None
        self._forward = boxed(graphs.forward)
        if splits:
            parts = split_backward(graphs.backward, len(stage.gradients_made))
            self._inputs, self._weights = boxed(parts.inputs), boxed(parts.weights)
        else:
            self._backward = boxed(graphs.backward)
        self._saved: dict[int, list[Any]] = {}
        self._kept: dict[int, list[Any]] = {}

    def forward(
        self, microbatch: int, received: Tensors, inputs: Sequence[Any]
    ) -> tuple[Tensors, torch.Tensor | None]:
        """Values for the next stage, and the loss at the last one."""
        table: dict[str, Callable[[Any], Any]] = {
            "parameter": self.parameters.__getitem__,
            "buffer": self.buffers.__getitem__,
            "input": inputs.__getitem__,
            "received": received.__getitem__,
        }
        arguments = [table[s.kind](s.name) for s in self.stage.sources]
        arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
        made = list(self._forward(arguments))
        self._saved[microbatch] = made[self.stage.forward_outputs :]
        del made[self.stage.forward_outputs :]
        loss = made.pop() if self.stage.is_last else None
        for name in self.stage.written:
            self.buffers[name].copy_(made.pop(0))
        new = dict(zip(self.stage.made, made, strict=True))
        return {n: new[n] if n in new else received[n] for n in self.stage.sent}, loss

    def backward(self, microbatch: int, received: Tensors) -> Tensors:
        """Add the parameters' gradients; gradients for the stage before."""
        arguments = self._arguments(microbatch, received)
        through = {n: received[n] for n in self.stage.gradients_sent if n in received}
        received.clear()
        made = list(self._backward(arguments))
        count = len(self.stage.gradients_made)
        sent = self._in_order(made[:count], through)
        weights = made[count:]
        made.clear()
        self._accumulate(weights)
        return sent

    def backward_inputs(self, microbatch: int, received: Tensors) -> Tensors:
        """Gradients for the stage before; the parameters' wait for `backward_weights`."""
        arguments = self._arguments(microbatch, received)
        through = {n: received[n] for n in self.stage.gradients_sent if n in received}
        received.clear()
        made = list(self._inputs(arguments))
        count = len(self.stage.gradients_made)
        self._kept[microbatch] = made[count:]
        return self._in_order(made[:count], through)

    def backward_weights(self, microbatch: int) -> None:
        """Add the parameters' gradients of a microbatch."""
        self._accumulate(list(self._weights(self._kept.pop(microbatch))))

    def clear(self) -> None:
        """Forget what a step that failed has left."""
        self._saved.clear()
        self._kept.clear()

    def _arguments(self, microbatch: int, received: Tensors) -> list[Any]:
        arguments = self._saved.pop(microbatch)
        if self.stage.is_last:
            arguments.append(self.start)
        return arguments + [received[n] for n in self.stage.gradients_read]

    def _in_order(self, made: list[torch.Tensor], through: Tensors) -> Tensors:
        """As the stage before receives them."""
        found = dict(zip(self.stage.gradients_made, made, strict=True)) | through
        return {n: found[n] for n in self.stage.gradients_sent}

    def _accumulate(self, gradients: list[torch.Tensor]) -> None:
        gradients.reverse()
        for name in self.stage.weights:
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.add_(gradients.pop())
