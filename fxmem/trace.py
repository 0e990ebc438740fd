"""The joint forward and backward graph of a step, and what each value is to the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx as fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput  # 2.9 to 2.15

from .errors import TraceError
from .passes.checkpoint import run_again
from .passes.simplify import simplify
from .passes.split import is_tangent
from .storages import StorageMap, is_random, map_storages, operators


@dataclass(frozen=True)
class StepTrace:
    """One training step as a graph.

    Attributes
    ----------
    joint : fx.GraphModule
        Inputs: primals, then tangents. Outputs: forward outputs, then gradients.
    storages : StorageMap
        Storages of ``joint``.
    forward_outputs : int
        How many of the outputs belong to the forward part.
    written_back : int
        How many of those, at the front, are new values of mutated inputs: they are copied
        back at the end of the forward part and then freed.
    overwritten : tuple of fx.Node
        The placeholders of those inputs: what runs in the backward part finds new values there.
    """

    joint: fx.GraphModule
    storages: StorageMap
    forward_outputs: int
    written_back: int
    overwritten: tuple[fx.Node, ...] = ()

    @property
    def outputs(self) -> tuple[fx.Node | None, ...]:
        """Every output of the joint graph, in order; None where there is no gradient."""
        found = self.joint.graph.output_node().args[0]
        assert isinstance(found, (list, tuple))
        return tuple(v if isinstance(v, fx.Node) else None for v in found)

    @property
    def operators(self) -> tuple[fx.Node, ...]:
        """Nodes that compute, in traced order."""
        return tuple(operators(self.joint.graph))

    @property
    def tangents(self) -> tuple[fx.Node, ...]:
        """Placeholders for the gradients of the forward outputs."""
        return tuple(n for n in self.joint.graph.nodes if is_tangent(n))

    @property
    def random(self) -> tuple[fx.Node, ...]:
        """Operators that draw random numbers, in traced order."""
        return tuple(n for n in self.operators if is_random(n))

    def storages_of(self, nodes: tuple[fx.Node | None, ...]) -> frozenset[int]:
        """Storages behind some nodes."""
        return frozenset(s for n in nodes if n is not None for s in self.storages.of[n] if s >= 0)

    def device(self) -> torch.device:
        """The one device of the step.

        Raises
        ------
        TraceError
            Tensors of the graph lie on several devices.
        """
        found = {
            value.device
            for node in self.joint.graph.nodes
            for value in _tensors(node.meta.get("val"))
            if value.dim() > 0
        }
        if len(found) > 1:
            names = ", ".join(sorted(map(str, found)))
            raise TraceError(
                f"the step has tensors on several devices ({names}). Move the module and its "
                "inputs to one device, or give a budget for each device."
            )
        return found.pop() if found else torch.device("cpu")


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [v for v in value if isinstance(v, torch.Tensor)]
    return []


def trace_joint(joint: fx.GraphModule, forward_outputs: int) -> StepTrace:
    """Make a `StepTrace` of a joint graph as AOTAutograd hands it to a partitioner."""
    refuse_unknown_sizes(joint)
    simple = run_again(simplify(joint), forward_outputs)
    written = written_inputs(joint)
    sources = [n for n in simple.graph.nodes if n.op == "placeholder"]
    overwritten = tuple(sources[i] for i in written)
    storages = map_storages(simple.graph)
    return StepTrace(simple, storages, forward_outputs, len(written), overwritten)


def written_inputs(joint: fx.GraphModule) -> tuple[int, ...]:
    """Positions of the step's inputs that AOTAutograd writes to after the forward part.

    Their new values are the first outputs of the graph, in this order.
    """
    sources = [n.meta.get("desc") for n in joint.graph.nodes if n.op == "placeholder"]
    outputs = joint.graph.output_node().meta.get("desc") or ()
    written = [d.mutated_input for d in outputs if isinstance(d, InputMutationAOTOutput)]
    return tuple(map(sources.index, written))


def refuse_unknown_sizes(joint: fx.GraphModule) -> None:
    """Raise TraceError where a number or size of the graph is known only as the step runs."""
    for node in joint.graph.nodes:
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            where = str(node.meta.get("stack_trace") or "").strip()
            raise TraceError(
                f"{node.name} is a number or size that is known only as the step runs. Compute "
                f"it outside the module, or pad to a fixed shape.\n{where}".rstrip()
            )
