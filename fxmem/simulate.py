"""Memory of the rewritten graphs, node by node: what the allocator will report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch.fx as fx

from .costs import Cost
from .passes.split import SplitStep, is_tangent
from .plan import CATEGORIES, Moment
from .storages import StorageMap, is_transfer, map_storages, operators


@dataclass(frozen=True)
class Lifetime:
    """One value, from the operator that makes it to the last that needs it.

    Attributes
    ----------
    name : str
        Node of the traced graph that makes it.
    bytes : int
    category : str
        One of `CATEGORIES`.
    first, last : int
        Positions in the timeline; the value is held at both and between them.
    """

    name: str
    bytes: int
    category: str
    first: int
    last: int


@dataclass(frozen=True)
class Simulation:
    """What one step will hold.

    Attributes
    ----------
    timeline : tuple of Moment
        One entry for each operator, in the order in which they run.
    peak_bytes : int
        Largest number of bytes held at once, residents included.
    lifetimes : tuple of Lifetime
        Of all that is held but residents and workspace. What lives on from forward to backward
        has one for each part.
    """

    timeline: tuple[Moment, ...]
    peak_bytes: int
    lifetimes: tuple[Lifetime, ...] = ()


def simulate(
    step: SplitStep,
    costs: Mapping[fx.Node, Cost],
    resident_bytes: int,
    forward_outputs: int,
    written_back: int = 0,
    only: Callable[[fx.Node], bool] = lambda node: True,
) -> Simulation:
    """Walk the forward and then the backward graph.

    Parameters
    ----------
    step : SplitStep
    costs : mapping
        Seconds and workspace of the operators of both graphs.
    resident_bytes : int
        Held throughout.
    forward_outputs, written_back : int
        As in `StepTrace`.
    only : callable, optional
        Bytes of other nodes do not count: they are held by another device.
    """
    clock = _Clock(costs, resident_bytes, only)
    forward = _map(step.forward.graph, only)
    left: Any = step.forward.graph.output_node().args[0]
    returned = _storages(left[written_back:forward_outputs], forward)
    saved = [forward.of[node][0] for node in left[forward_outputs:]]
    inputs = {s for s, node in enumerate(forward.made_by) if node.op in ("placeholder", "get_attr")}

    walk = _Walk(forward, clock, "forward", kept=set(saved))
    walk.run(step.forward.graph, alive={}, pinned=_storages(left, forward) | inputs, free=inputs)

    backward = _map(step.backward.graph, only)
    # A saved value is the forward part's storage under another name.
    alive, pinned, resident = {}, set(), set()
    names: dict[int, str] = {}
    sources = [n for n in step.backward.graph.nodes if n.op == "placeholder"]
    first: dict[int, int] = {}  # forward's storage -> backward's
    for node, source in zip(sources, saved, strict=False):
        (storage,) = backward.of[node]
        if first.setdefault(source, storage) != storage:
            backward.join(first[source], storage)
            continue
        names[storage] = _name(forward.made_by[source])
        if source in inputs:
            resident.add(storage)
        else:
            alive[storage] = "kept"
            if source in returned:
                pinned.add(storage)
    left_behind = returned - set(saved) - inputs
    held = sum(forward.size[s] for s in left_behind)
    turn = len(clock.timeline)
    for node in sources:
        if is_tangent(node):
            alive[backward.of[node][0]] = "temporary"
            pinned.add(backward.of[node][0])
    resident |= {s for s, n in enumerate(backward.made_by) if n.op == "get_attr"}
    out = step.backward.graph.output_node().args[0]
    gradients = _storages(out, backward)
    walk = _Walk(backward, clock, "backward", gradients=gradients, outputs_bytes=held, names=names)
    walk.run(step.backward.graph, alive, pinned | gradients | resident, free=resident)
    for storage in left_behind:
        clock.lived(_name(forward.made_by[storage]), forward.size[storage], "outputs", turn)
    peak = max((m.live_bytes for m in clock.timeline), default=resident_bytes)
    return Simulation(tuple(clock.timeline), peak, tuple(clock.lifetimes))


def _map(graph: fx.Graph, only: Callable[[fx.Node], bool]) -> StorageMap:
    """The storages of ``graph``, without the bytes of those that do not count."""
    found = map_storages(graph)
    for storage, node in enumerate(found.made_by):
        if not only(node):
            found.size[storage] = 0
    return found


def _name(node: fx.Node) -> str:
    return str(node.meta.get("of", node.name))


def _storages(values: object, storages: StorageMap) -> set[int]:
    assert isinstance(values, (list, tuple))
    return {s for v in values if isinstance(v, fx.Node) for s in storages.of[v] if s >= 0}


class _Clock:
    """The timeline so far."""

    def __init__(
        self,
        costs: Mapping[fx.Node, Cost],
        resident_bytes: int,
        only: Callable[[fx.Node], bool],
    ) -> None:
        self.costs, self.only = costs, only
        self.resident_bytes = resident_bytes
        self.now = 0.0
        self.timeline: list[Moment] = []
        self.lifetimes: list[Lifetime] = []

    def tick(self, node: fx.Node, phase: str, held: dict[str, int]) -> None:
        cost = self.costs[node]
        workspace = cost.workspace_bytes if self.only(node) else 0
        held = {**held, "resident": self.resident_bytes, "workspace": workspace}
        counts = tuple(held.get(c, 0) for c in CATEGORIES)
        name = _name(node)
        again = bool(node.meta.get("recomputed"))
        self.timeline.append(Moment(name, phase, again, self.now, cost.seconds, counts))
        self.now += cost.seconds

    def lived(self, name: str, size: int, category: str, first: int) -> None:
        """Note a value that the next operator no longer finds."""
        if first < len(self.timeline):
            last = len(self.timeline) - 1
            self.lifetimes.append(Lifetime(name, size, category, first, last))


class _Walk:
    """One graph: which storages are alive, and as what they count."""

    def __init__(
        self,
        storages: StorageMap,
        clock: _Clock,
        phase: str,
        kept: set[int] = frozenset(),  # type: ignore[assignment]
        gradients: set[int] = frozenset(),  # type: ignore[assignment]
        outputs_bytes: int = 0,
        names: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.storages, self.clock, self.phase = storages, clock, phase
        self.kept, self.gradients, self.outputs_bytes = kept, gradients, outputs_bytes
        self.names = names

    def run(self, graph: fx.Graph, alive: dict[int, str], pinned: set[int], free: set[int]) -> None:
        """Walk ``graph``; ``alive`` is held from the start, ``pinned`` never freed."""
        last: dict[int, fx.Node] = {}
        for node in graph.nodes:
            for storage in (*self.storages.read_by(node), *self.storages.of[node]):
                last[storage] = node
        computing = set(operators(graph))
        dying: dict[fx.Node, list[int]] = {}
        for storage, node in last.items():
            if storage not in pinned:
                dying.setdefault(node, []).append(storage)
        for storage in [s for s in alive if s not in last and s not in pinned]:
            del alive[storage]
        held = dict.fromkeys(CATEGORIES, 0)
        held["outputs"] = self.outputs_bytes
        for storage, category in alive.items():
            held[category] += self.storages.size[storage]
        born = dict.fromkeys(alive, len(self.clock.timeline))
        for node in graph.nodes:
            if node.op == "call_function":
                for storage in self.storages.made_at(node):
                    alive[storage] = self._category(storage, node)
                    born[storage] = len(self.clock.timeline)
                    held[alive[storage]] += self.storages.size[storage]
                if node in computing:
                    self.clock.tick(node, self.phase, held)
                elif is_transfer(node):
                    self.clock.now += node.meta.get("stall", 0.0)
            for storage in dying.get(node, ()):
                if storage in alive and storage not in free:
                    self._end(storage, alive[storage], born)
                    held[alive.pop(storage)] -= self.storages.size[storage]
        for storage, category in alive.items():
            self._end(storage, category, born)

    def _end(self, storage: int, category: str, born: Mapping[int, int]) -> None:
        name = self.names.get(storage) or _name(self.storages.made_by[storage])
        self.clock.lived(name, self.storages.size[storage], category, born[storage])

    def _category(self, storage: int, node: fx.Node) -> str:
        if storage in self.gradients:
            return "gradients"
        if storage in self.kept:
            return "kept"
        return "recomputed" if node.meta.get("recomputed") else "temporary"
