"""Cut a joint graph into the stages of a pipeline, at any operator of its forward part.

`stage_homes` says where each operator runs. A value that is read beyond the next stage travels
through the stages between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch._functorch._aot_autograd.descriptors import (  # private; there since 2.9
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
)

from ..errors import TraceError
from ..storages import is_dense
from .split import is_tangent
from .stage_homes import Homes, outputs

aten = torch.ops.aten


@dataclass(frozen=True)
class Source:
    """What a stage reads of its own: ``kind`` is "parameter", "buffer", "input" or "received"."""

    kind: str
    name: str | int


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Attributes
    ----------
    joint : fx.GraphModule
        Inputs: as in ``sources``, then a tangent for each of ``gradients_read``. Outputs: new
        values of ``written`` buffers, then ``made`` for later stages and, at the last stage, the
        loss; then ``gradients_made`` for earlier stages and one gradient for each of ``weights``.
    sources : tuple of Source
    received, sent : tuple of str
        Values that come from the stage before, and that go to the next. Those that are sent and
        not ``made`` here only pass through.
    gradients_received, gradients_sent : tuple of str
        The same in the other direction.
    weights : tuple of str
        Parameters, one name for each gradient; a name may stand twice.
    written : tuple of str
        Buffers.
    values : dict of str to torch.Tensor
        Fake tensor of each value that crosses a cut of this stage.
    is_last : bool
    """

    joint: fx.GraphModule
    sources: tuple[Source, ...]
    received: tuple[str, ...]
    sent: tuple[str, ...]
    made: tuple[str, ...]
    gradients_received: tuple[str, ...]
    gradients_read: tuple[str, ...]
    gradients_sent: tuple[str, ...]
    gradients_made: tuple[str, ...]
    weights: tuple[str, ...]
    written: tuple[str, ...]
    values: dict[str, torch.Tensor]
    is_last: bool

    @property
    def forward_outputs(self) -> int:
        """How many of the outputs belong to the forward part."""
        return len(self.written) + len(self.made) + self.is_last

    def names(self, kind: str) -> tuple[str, ...]:
        """Names of what is read of one kind."""
        return tuple(str(s.name) for s in self.sources if s.kind == kind)


def cut(joint: fx.GraphModule, cuts: Sequence[int]) -> tuple[Stage, ...]:
    """Cut ``joint`` into ``len(cuts) + 1`` stages.

    Parameters
    ----------
    joint : fx.GraphModule
        As AOTAutograd exports it, with descriptors, and simplified; one output, the loss.
    cuts : sequence of int
        Not decreasing: stage k begins with forward operator number ``cuts[k - 1]``.

    Raises
    ------
    TraceError
        A value that crosses a cut, or a buffer, cannot be shared by stages.
    """
    cutter = _Cutter(joint, cuts)
    return tuple(cutter.stage(k) for k in range(len(cuts) + 1))


class _Cutter:
    """The joint graph, the stage of each node, and the values that cross each cut."""

    def __init__(self, joint: fx.GraphModule, cuts: Sequence[int]) -> None:
        self.joint, self.nodes, self.last = joint, list(joint.graph.nodes), len(cuts)
        self.homes = Homes(joint, cuts)
        self.stage_of = self.homes.stage_of
        self.number = {n: i for i, n in enumerate(self.nodes)}
        self.gradients: list[tuple[str, fx.Node]] = []
        self.written: list[tuple[Any, fx.Node]] = []
        for node, desc in outputs(joint):
            if isinstance(desc, InputMutationAOTOutput):
                self.written.append((desc, node))
            elif isinstance(desc, GradAOTOutput):
                if isinstance(desc.grad_of, ParamAOTInput):
                    self.gradients += [(desc.grad_of.target, a) for a in self._addends(node)]
            else:
                self.loss = node
        self.forward: list[set[fx.Node]] = [set() for _ in range(self.last + 1)]
        self.backward: list[set[fx.Node]] = [set() for _ in range(self.last + 1)]
        for k in range(self.last + 1):
            self._route(k)

    def _addends(self, node: fx.Node) -> list[fx.Node]:
        """A gradient summed over several stages, in the parts that each can sum up by itself."""
        if node.target is aten.add.Tensor and len(node.args) == 2 and len(node.users) == 1:
            parts = [a for a in node.args if isinstance(a, fx.Node)]
            same = all(p.meta["val"].shape == node.meta["val"].shape for p in parts)
            below = [a for p in parts for a in self._addends(p)]
            if len(parts) == 2 and same and len({self.homes.home(a) for a in below}) > 1:
                self.stage_of.pop(node, None)
                return below
        return [node]

    def _results(self, k: int) -> list[fx.Node]:
        """Outputs of the whole step that stage ``k`` makes."""
        ends = [n for _, n in self.written] + [n for _, n in self.gradients]
        return [n for n in ends if self.homes.home(n) == k] + (
            [self.loss] if k == self.last else []
        )

    def _route(self, k: int) -> None:
        """Send what stage ``k`` reads of others on its way."""
        wanted = [b for n in self.nodes if self.stage_of.get(n) == k for b in self.homes.bases(n)]
        for node in dict.fromkeys(wanted):
            home = self.stage_of.get(node, k)
            for place in range(home, k):
                self.forward[place].add(node)
            for place in range(k + 1, home + 1):
                self.backward[place].add(node)

    def _sorted(self, nodes: set[fx.Node]) -> list[fx.Node]:
        return sorted(nodes, key=self.number.__getitem__)

    def stage(self, k: int) -> Stage:
        own = [n for n in self.nodes if self.stage_of.get(n) == k and n.op == "call_function"]
        sent = self._sorted(self.forward[k])
        back = self._sorted(self.backward[k])
        received = self._sorted(self.forward[k - 1]) if k else []
        gradients = self._sorted(self.backward[k + 1]) if k < self.last else []
        reads = {b for n in own for b in self.homes.bases(n)}
        made = [n for n in sent if self.stage_of[n] == k]
        made_back = [n for n in back if self.stage_of[n] == k]
        reads |= {self.homes.base(n) for n in self._results(k)}
        graph, env = fx.Graph(), {}
        sources = []
        for node in self.nodes:
            if node not in reads or is_tangent(node):
                continue
            if node.op == "placeholder":
                sources.append((self._source(node), node))
            elif node in received:
                sources.append((Source("received", node.name), node))
        for i, (_, node) in enumerate(sources):
            env[node] = graph.placeholder(f"primals_{i + 1}")
            env[node].meta = dict(node.meta)
            if node.op != "placeholder":
                env[node].meta["desc"] = None
        read_back = [n for n in gradients if n in reads]
        if k == self.last:
            read_back = [n for n in self.nodes if is_tangent(n)]
        for i, node in enumerate(read_back):
            env[node] = graph.placeholder(f"tangents_{i + 1}")
            env[node].meta = dict(node.meta)

        def value(node: fx.Node) -> fx.Node:
            if node not in env:
                env[node] = graph.node_copy(node, value)
            return env[node]

        for node in own:
            value(node)
        written = [(d, n) for d, n in self.written if self.homes.home(n) == k]
        weights = [(name, n) for name, n in self.gradients if self.homes.home(n) == k]
        ends = [n for _, n in written] + made + ([self.loss] if k == self.last else [])
        results = ends + made_back + [n for _, n in weights]
        output = graph.output(tuple(map(value, results)))
        output.meta["desc"] = [d for d, _ in written] + [None] * (len(results) - len(written))
        graph.lint()
        crossing = {n.name: n.meta["val"] for n in (*sent, *received, *gradients, *back)}
        for name, fake in crossing.items():
            if not is_dense(fake):
                raise TraceError(f"{name} has gaps in memory and cannot cross a cut; cut elsewhere")
        self._check_buffers(k, sources)
        return Stage(
            fx.GraphModule(self.joint, graph),
            tuple(s for s, _ in sources),
            _names(received),
            _names(sent),
            _names(made),
            _names(gradients),
            () if k == self.last else _names(read_back),
            _names(back),
            _names(made_back),
            tuple(name for name, _ in weights),
            tuple(d.mutated_input.target for d, _ in written),
            crossing,
            k == self.last,
        )

    def _source(self, node: fx.Node) -> Source:
        desc = node.meta["desc"]
        if isinstance(desc, ParamAOTInput):
            return Source("parameter", desc.target)
        if isinstance(desc, BufferAOTInput):
            return Source("buffer", desc.target)
        assert isinstance(desc, PlainAOTInput)
        return Source("input", desc.idx)

    def _check_buffers(self, k: int, sources: list[tuple[Source, fx.Node]]) -> None:
        """A buffer that changes is read in one stage only: elsewhere it would be out of date."""
        homes = {d.mutated_input.target: self.homes.home(n) for d, n in self.written}
        for source, _ in sources:
            if source.kind == "buffer" and homes.get(str(source.name), k) != k:
                raise TraceError(
                    f"the buffer {source.name} changes in stage {homes[str(source.name)]} and is "
                    f"read in stage {k}. Cut so that both are one stage."
                )


def _names(nodes: list[fx.Node]) -> tuple[str, ...]:
    return tuple(n.name for n in nodes)
