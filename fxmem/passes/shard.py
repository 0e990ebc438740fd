"""Give every operator of a joint graph its stage, and copy what crosses from one to another.

A value is copied once to each stage that reads it. Views of it, and what is computed from
nothing, are made anew in that stage. On logical devices, which share one memory and are told
apart in the accounts only, the copy is just as real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._functorch._aot_autograd.descriptors import (  # private; there since 2.9
    GradAOTOutput,
    InputMutationAOTOutput,
)
from torch._guards import detect_fake_mode
from torch.fx.node import map_aggregate

from ..errors import TraceError
from ..storages import is_dense, is_effect, is_item, is_random, is_view, operators
from .split import is_tangent

aten = torch.ops.aten

#: In a node's meta: the number of its stage.
STAGE = "fxmem_stage"
#: In the meta of a copy between stages: the name of the value.
MOVED = "fxmem_moved"


def stage_of(node: fx.Node) -> int:
    """The stage that a node of a sharded graph runs in, or that a value is held by."""
    return int(node.meta[STAGE])


def stage_mark(node: fx.Node) -> dict[str, int]:
    """What a node needs in its meta to run in the stage of ``node``; nothing on one device."""
    return {STAGE: node.meta[STAGE]} if STAGE in node.meta else {}


def stages_of(graph: fx.Graph) -> list[int | None]:
    """The stage of each node that computes; None for all others."""
    computing = set(operators(graph))
    return [stage_mark(n).get(STAGE) if n in computing else None for n in graph.nodes]


def is_move(node: fx.Node) -> bool:
    """Does ``node`` copy a value from one stage to another?"""
    return MOVED in node.meta


def shard(
    joint: fx.GraphModule, stages: Mapping[fx.Node, int], devices: Sequence[torch.device]
) -> fx.GraphModule:
    """Return a new joint graph in which each node has a stage, and reads of it alone.

    Parameters
    ----------
    joint : fx.GraphModule
        Of a step on one device, with descriptors of inputs and outputs.
    stages : mapping
        The stage of each operator.
    devices : sequence of torch.device
        Of each stage. Stages with equal devices are logical devices.

    Returns
    -------
    fx.GraphModule
        The same inputs and outputs. A parameter lies where it is read first, a gradient where its
        parameter does; ``meta["fxmem_stage"]`` of the inputs tells.

    Raises
    ------
    TraceError
        A value that crosses has gaps in memory.
    """
    return _Sharder(joint, stages, devices).run()


class _Sharder:
    def __init__(
        self, joint: fx.GraphModule, stages: Mapping[fx.Node, int], devices: Sequence[torch.device]
    ) -> None:
        self.joint, self.stages, self.devices = joint, stages, devices
        self.graph = fx.Graph()
        self.made: dict[tuple[fx.Node, int], fx.Node] = {}
        self.traced_on = _device_of(joint)
        self.rewrites = any(d != self.traced_on for d in devices)
        self.free = _free(joint.graph)
        self.home = dict(stages)
        self._place_sources()

    def run(self) -> fx.GraphModule:
        for node in self.joint.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._source(node)
            elif node.op == "output":
                self._output(node)
            elif node in self.stages and node not in self.free:
                self._value(node, self.home[node])
            elif is_item(node):
                # Results of one operator exist as soon as it has run.
                self._value(node, self._home_of(node))
        self.graph.eliminate_dead_code(lambda n: n.is_impure())
        self.graph.lint()
        return fx.GraphModule(self.joint, self.graph)

    def _place_sources(self) -> None:
        """Inputs lie with their new values, or else where they are read first.

        The loss, and what else the caller does with outputs, is the last stage's.
        """
        output = self.joint.graph.output_node()
        results: Any = output.args[0]
        descs = output.meta.get("desc") or [None] * len(results)
        written = {
            desc.mutated_input: node
            for node, desc in zip(results, descs, strict=True)
            if isinstance(node, fx.Node) and isinstance(desc, InputMutationAOTOutput)
        }
        readers = self._readers()
        for node in self.joint.graph.nodes:
            if node.op not in ("placeholder", "get_attr"):
                continue
            new = written.get(node.meta.get("desc"))
            if is_tangent(node):
                self.home[node] = len(self.devices) - 1
            elif new is not None and self._base(new) in self.stages:
                self.home[node] = self._home_of(new)
            else:
                self.home[node] = min(readers.get(node, (0,)))

    def _readers(self) -> dict[fx.Node, list[int]]:
        found: dict[fx.Node, list[int]] = {}
        for node, stage in self.stages.items():
            if node in self.free:
                continue
            waiting = list(node.all_input_nodes)
            while waiting:
                value = waiting.pop()
                if is_view(value):
                    waiting.extend(value.all_input_nodes)
                else:
                    found.setdefault(value, []).append(stage)
        return found

    def _base(self, node: fx.Node) -> fx.Node:
        while is_view(node) or is_item(node):
            node = node.all_input_nodes[0]
        return node

    def _home_of(self, node: fx.Node) -> int:
        return self.home.get(self._base(node), 0)

    def _source(self, node: fx.Node) -> None:
        stage = self.home[node]
        self.made[node, stage] = self._copy(node, stage)

    def _output(self, node: fx.Node) -> None:
        homes = {
            n.meta["desc"]: self.home[n]
            for n in self.joint.graph.nodes
            if n.op == "placeholder" and n.meta.get("desc") is not None
        }
        results: Any = node.args[0]
        placed = []
        for value, desc in zip(results, node.meta.get("desc") or results, strict=True):
            if not isinstance(value, fx.Node):
                placed.append(value)
                continue
            stage = self._home_of(value)
            if isinstance(desc, InputMutationAOTOutput):
                stage = homes[desc.mutated_input]
            elif isinstance(desc, GradAOTOutput):
                stage = homes.get(desc.grad_of, stage)
            placed.append(self._value(value, stage))
        self.graph.output(type(results)(placed)).meta = dict(node.meta)

    def _value(self, node: fx.Node, stage: int) -> fx.Node:
        """``node`` in ``stage``: the value itself, a copy of it, or a view made there."""
        if (node, stage) not in self.made:
            local = node in self.free or is_view(node) or self._home_of(node) == stage
            if local and node.op not in ("placeholder", "get_attr"):
                self.made[node, stage] = self._copy(node, stage)
            else:
                self.made[node, stage] = self._move(node, stage)
        return self.made[node, stage]

    def _copy(self, node: fx.Node, stage: int) -> fx.Node:
        args = fx.map_arg(node.args, lambda a: self._value(a, stage))
        kwargs = fx.map_arg(node.kwargs, lambda a: self._value(a, stage))
        first = all((node, s) not in self.made for s in range(len(self.devices)))
        # Names tell values apart in plans: the first keeps the one that it was traced with.
        name = node.name if first and self._home_of(node) == stage else f"{node.name}_on_{stage}"
        made = self.graph.create_node(node.op, node.target, args, kwargs, name, node.type)
        made.meta = {**node.meta, STAGE: stage}
        if self.rewrites:
            self._rewrite(made, stage)
        return made

    def _move(self, node: fx.Node, stage: int) -> fx.Node:
        home = self._home_of(node)
        source = self._value(node, home)
        value = source.meta["val"]
        if node.op == "get_attr" and value.device == self.devices[stage]:
            return source
        if not is_dense(value):
            raise TraceError(
                f"{node.name} has gaps in memory and cannot cross a cut; cut elsewhere"
            )
        name = f"{node.name}_on_{stage}"
        move = self.graph.create_node("call_function", aten._to_copy.default, (source,), {}, name)
        move.meta = {k: v for k, v in node.meta.items() if k not in ("desc", "seq_nr", "recompute")}
        move.meta |= {STAGE: stage, MOVED: node.name}
        if self.devices[stage] != value.device and value.device == self.devices[home]:
            move.kwargs = {"device": self.devices[stage]}
        if self.rewrites:
            move.meta["val"] = _on(value, self.devices[stage])
        return move

    def _rewrite(self, node: fx.Node, stage: int) -> None:
        """Factories make their results on the stage's device, and fake values lie there."""
        device = self.devices[stage]

        def there(value: Any) -> Any:
            return device if value == self.traced_on and isinstance(value, torch.device) else value

        if node.op == "call_function":
            arguments: Any = map_aggregate((node.args, node.kwargs), there)
            node.args, node.kwargs = arguments
        node.meta["val"] = map_aggregate(
            node.meta.get("val"),
            lambda v: (
                _on(v, device) if isinstance(v, torch.Tensor) and v.device == self.traced_on else v
            ),
        )


def _free(graph: fx.Graph) -> set[fx.Node]:
    """What is computed from nothing: each stage makes its own."""
    free: set[fx.Node] = set()
    for node in graph.nodes:
        computes = node.op == "call_function" and not (is_random(node) or is_effect(node))
        if computes and all(a in free for a in node.all_input_nodes):
            free.add(node)
    return free


def _device_of(joint: fx.GraphModule) -> torch.device:
    """Where the step was traced: the device of its inputs."""
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor) and value.dim() > 0:
            return value.device
    return torch.device("cpu")


def _on(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake tensor of the same layout on another device."""
    size = value.untyped_storage().nbytes() // value.element_size()
    with detect_fake_mode(value) or contextlib.nullcontext():
        whole = torch.empty(size, dtype=value.dtype, device=device)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())
