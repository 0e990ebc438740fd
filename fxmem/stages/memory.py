"""Bytes that a rank of a pipeline holds: its actions replayed, with every reference to a value.

The replay does what `runtime.stage.StageRun` and `runtime.pipelining.Engine` do, on blocks of so
many bytes in place of tensors. A block is free once nothing refers to it: neither values on their
way, nor values kept for backward, nor a graph that has yet to use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from ..costs import Cost
from ..passes.split import SplitStep
from ..passes.stages import Stage
from ..planning import graph_costs
from ..runtime.pipelining import Action
from ..runtime.stage import split_backward
from ..storages import map_storages, tensor_bytes


@dataclass(eq=False)
class Block:
    """Memory of some bytes, and how many refer to it."""

    size: int
    holders: int = 0


Blocks = dict[str, Block]
Values = list[Block | None]  # None: held throughout, or no tensor


class Part:
    """One graph of a stage: what it takes while it runs.

    Parameters
    ----------
    module : fx.GraphModule
    costs : mapping
        Of the traced nodes that the graph's stand for; their workspace counts.
    """

    def __init__(self, module: fx.GraphModule, costs: Mapping[fx.Node, Cost]) -> None:
        self.graph = module.graph
        self.storages = map_storages(self.graph)
        found = graph_costs(module, costs)
        self.workspace = {
            n: cost.workspace_bytes for n, cost in found.items() if n.op == "call_function"
        }
        self.inputs = [self._storage(n) for n in self.graph.nodes if n.op == "placeholder"]
        results: Any = self.graph.output_node().args[0]
        self.outputs = [self._storage(n) for n in results]
        self.constants = {s for s, n in enumerate(self.storages.made_by) if n.op == "get_attr"}
        self._peaks: dict[frozenset[int], int] = {}

    def peak(self, pinned: frozenset[int]) -> int:
        """Most bytes above those at the start, if some inputs are held by others as well."""
        if pinned not in self._peaks:
            self._peaks[pinned] = self._walk(pinned)
        return self._peaks[pinned]

    def _storage(self, value: object) -> int | None:
        found = self.storages.of.get(value, ()) if isinstance(value, fx.Node) else ()
        return found[0] if found and found[0] >= 0 else None

    def _walk(self, pinned: frozenset[int]) -> int:
        last: dict[int, fx.Node | None] = {s: None for s in self.inputs if s is not None}
        for node in self.graph.nodes:
            if node.op != "placeholder":
                touched = (*self.storages.read_by(node), *self.storages.of.get(node, ()))
                last |= dict.fromkeys(touched, node)
        dying: dict[fx.Node | None, list[int]] = {}
        for storage in last.keys() - pinned - self.constants - set(self.outputs):
            dying.setdefault(last[storage], []).append(storage)
        size = self.storages.size
        live, most = -sum(size[s] for s in dying.get(None, ())), 0
        for node in self.graph.nodes:
            if node.op == "call_function":
                live += sum(size[s] for s in self.storages.made_at(node))
                most = max(most, live + self.workspace[node])
            live -= sum(size[s] for s in dying.get(node, ()))
        return most


class StageParts:
    """The graphs of a planned stage.

    Parameters
    ----------
    stage : Stage
    graphs : SplitStep
    costs : mapping
        As of `Part`.
    splits : bool
        Does backward run in two parts?

    Attributes
    ----------
    kept : int
        Bytes made in the forward part and read in the backward part.
    """

    def __init__(
        self, stage: Stage, graphs: SplitStep, costs: Mapping[fx.Node, Cost], splits: bool
    ) -> None:
        self.stage = stage
        self.forward = Part(graphs.forward, costs)
        saved = set(self.forward.outputs[stage.forward_outputs :]) - set(self.forward.inputs)
        self.kept = sum(self.forward.storages.size[s] for s in saved if s is not None)
        if splits:
            parts = split_backward(graphs.backward, len(stage.gradients_made))
            self.inputs, self.weights = Part(parts.inputs, costs), Part(parts.weights, costs)
        else:
            self.backward = Part(graphs.backward, costs)


def rank_peak(
    order: Sequence[Action],
    stages: Mapping[int, StageParts],
    arrived: Mapping[Action, Sequence[Action]],
) -> int:
    """Most bytes that a rank holds for its microbatches.

    Parameters
    ----------
    order : sequence of Action
        What the rank does.
    stages : mapping
        By number.
    arrived : mapping
        Computation -> sends whose values are free once it starts (`runtime.pipelining.arrivals`).
        Others are held until the step ends.
    """
    replay = _Replay(stages, arrived)
    does = {
        "RECV_F": replay.receive,
        "RECV_B": replay.receive_gradients,
        "F": replay.forward,
        "B": replay.backward,
        "I": replay.backward_inputs,
        "W": replay.backward_weights,
    }
    for action in order:
        if action[0] in does:
            does[action[0]](action)
    return replay.peak


class _Replay:
    """A rank in the midst of a step; microbatches are told apart as (stage, microbatch)."""

    def __init__(
        self, stages: Mapping[int, StageParts], arrived: Mapping[Action, Sequence[Action]]
    ) -> None:
        self.stages, self.arrived = stages, arrived
        self.live = self.peak = 0
        self.values: dict[tuple[int, int], Blocks] = {}  # have arrived
        self.gradients: dict[tuple[int, int], Blocks] = {}
        self.sends: dict[Action, Blocks] = {}
        self.saved: dict[tuple[int, int], Values] = {}  # for backward
        self.kept: dict[tuple[int, int], Values] = {}  # for its second part

    def receive(self, action: Action) -> None:
        stage = self.stages[action[1]].stage
        self.values[action[1:]] = self._room(stage, stage.received)

    def receive_gradients(self, action: Action) -> None:
        stage = self.stages[action[1]].stage
        self.gradients[action[1:]] = self._room(stage, stage.gradients_received)

    def forward(self, action: Action) -> None:
        _, s, m = action
        parts, stage = self.stages[s], self.stages[s].stage
        received = self.values.pop((s, m), {})
        self._let_go(action)
        kinds = [received[str(q.name)] if q.kind == "received" else None for q in stage.sources]
        made = self._run(parts.forward, self._hold(kinds))
        first, end = len(stage.written), stage.forward_outputs
        new = made[first : first + len(stage.made)]
        self.saved[s, m] = made[end:]
        self._drop(made[:first])  # the loss, if it is made here, stays until the step ends
        sent = self._sent(stage.sent, stage.made, new, received)
        self._drop(received.values())
        self._pass_on(("SEND_F", s, m), s + 1, sent, self.values)

    def backward(self, action: Action) -> None:
        gradients = self._backward(action, self.stages[action[1]].backward)
        self._drop(gradients)

    def backward_inputs(self, action: Action) -> None:
        self.kept[action[1:]] = self._backward(action, self.stages[action[1]].inputs)

    def backward_weights(self, action: Action) -> None:
        self._drop(self._run(self.stages[action[1]].weights, self.kept.pop(action[1:])))

    def _backward(self, action: Action, part: Part) -> Values:
        """Run and send; what is made beside the gradients that are sent."""
        _, s, m = action
        stage = self.stages[s].stage
        received = self.gradients.pop((s, m), {})
        self._let_go(action)
        read = self._hold([received[n] for n in stage.gradients_read])
        given = self.saved.pop((s, m)) + ([None] if stage.is_last else []) + read
        through = {n: received[n] for n in stage.gradients_sent if n in received}
        self._hold(through.values())
        self._drop(received.values())
        made = self._run(part, given)
        count = len(stage.gradients_made)
        sent = self._sent(stage.gradients_sent, stage.gradients_made, made[:count], through)
        self._drop(through.values())
        self._pass_on(("SEND_B", s, m), s - 1, sent, self.gradients)
        return made[count:]

    def _run(self, part: Part, given: Values) -> Values:
        """Results of a graph, each held once; ``given`` is let go of."""
        own = [b for b in given if b is not None]
        pinned = {
            storage
            for storage, block in zip(part.inputs, given, strict=True)
            if storage is not None and (block is None or block.holders > 1)
        }
        self.peak = max(self.peak, self.live + part.peak(frozenset(pinned)))
        blocks: dict[int | None, Block | None] = dict(zip(part.inputs, given, strict=True))
        blocks |= dict.fromkeys((None, *part.constants))
        made: Values = []
        for storage in part.outputs:
            if storage not in blocks:
                assert storage is not None
                blocks[storage] = self._new(part.storages.size[storage])
            made += self._hold([blocks[storage]])
        self._drop(own)
        self.peak = max(self.peak, self.live)
        return made

    def _sent(
        self, names: Sequence[str], made: Sequence[str], new: Values, through: Blocks
    ) -> Blocks:
        """What goes on; only what passes through is held anew."""
        fresh = dict(zip(made, new, strict=True))
        found = {}
        for name in names:
            block = fresh[name] if name in fresh else self._hold([through[name]])[0]
            if block is not None:
                found[name] = block
        return found

    def _pass_on(
        self, send: Action, to: int, sent: Blocks, here: dict[tuple[int, int], Blocks]
    ) -> None:
        if to in self.stages:
            here[to, send[2]] = sent
        else:
            self.sends[send] = sent

    def _let_go(self, action: Action) -> None:
        for send in self.arrived.get(action, ()):
            self._drop(self.sends.pop(send, {}).values())

    def _room(self, stage: Stage, names: Sequence[str]) -> Blocks:
        blocks = {n: self._new(tensor_bytes(stage.values[n])) for n in names}
        self._hold(blocks.values())
        self.peak = max(self.peak, self.live)
        return blocks

    def _new(self, size: int) -> Block:
        self.live += size
        return Block(size)

    def _hold(self, blocks: Iterable[Block | None]) -> Values:
        held = list(blocks)
        for block in held:
            if block is not None:
                block.holders += 1
        return held

    def _drop(self, blocks: Iterable[Block | None]) -> None:
        for block in blocks:
            if block is not None:
                block.holders -= 1
                self.live -= 0 if block.holders else block.size
