"""Lay the joint graph out in the planned order, with as many copies of a node as planned."""

from __future__ import annotations

import operator as py_operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from ..runtime.random import replay, turn
from ..storages import StorageMap, is_item, is_random, is_view
from .checkpoint import AGAIN
from .draws import device_of, keep_state
from .module import module_of
from .shard import stage_mark
from .transfers import Move, Moves

TURN = "turn"
aten = torch.ops.aten


def recompute(
    joint: fx.GraphModule,
    storages: StorageMap,
    forward_outputs: int,
    sequence: Sequence[fx.Node | Move | None],
    overwritten: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """Return a new joint graph whose operators run in the order of ``sequence``.

    Parameters
    ----------
    joint : fx.GraphModule
        The traced graph.
    storages : StorageMap
        Storages of ``joint``.
    forward_outputs : int
        How many of the graph's outputs belong to the forward part.
    sequence : sequence of fx.Node, Move or None
        Operators of ``joint``, some more than once, and what is moved out and back between them;
        None stands for the turn from forward to backward. Views are no operators: they are made
        anew from the latest copy of their storage just before each use.
    overwritten : sequence of fx.Node
        Placeholders that are written to once the forward part is over; what runs after the
        turn reads a copy of their old values.

    Returns
    -------
    fx.GraphModule
        Each operator's ``meta["of"]`` names the node of ``joint`` that it computes.
    """
    layout = _Layout(storages, sequence)
    for node in joint.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            layout.add_source(node)
    outputs = joint.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple))
    for node in sequence:
        if node is None:
            layout.keep_values(overwritten)
            layout.add_turn(outputs[:forward_outputs])
        elif isinstance(node, Move):
            layout.add_move(node)
        else:
            layout.add_operator(node)
    layout.add_outputs(outputs, forward_outputs)
    layout.graph.eliminate_dead_code(lambda n: n.target is turn or n.is_impure())
    layout.graph.lint()
    return module_of(joint, layout.graph)


class _Layout:
    """The graph under construction, and where the latest copy of each value is."""

    def __init__(self, storages: StorageMap, sequence: Sequence[fx.Node | Move | None]) -> None:
        self.graph = fx.Graph()
        self.moves = Moves(self.graph)
        self.storages = storages
        self.latest: dict[fx.Node, fx.Node] = {}
        self.views: dict[fx.Node, fx.Node] = {}
        self.states: dict[fx.Node, fx.Node] = {}
        self.left: tuple[Any, ...] = ()
        self.kept: dict[fx.Node, fx.Node] = {}
        runs: dict[fx.Node, int] = {}
        for node in sequence:
            if isinstance(node, fx.Node):
                runs[node] = runs.get(node, 0) + 1
        self.replayed = {node for node, count in runs.items() if count > 1 and is_random(node)}

    def value(self, node: fx.Node) -> fx.Node:
        """The latest copy of ``node`` in the new graph; views are made when asked for."""
        if not is_view(node):
            return self.latest[node]
        if node not in self.views:
            self.views[node] = self.graph.node_copy(node, self.value)
            self.views[node].meta["of"] = node.name
        return self.views[node]

    def add_source(self, node: fx.Node) -> None:
        self.latest[node] = self.graph.node_copy(node, self.value)

    def keep_values(self, overwritten: Sequence[fx.Node]) -> None:
        """Copy inputs whose values change at the turn; copies that nobody reads are dropped."""
        for node in overwritten:
            copy = self.graph.call_function(aten.clone.default, (self.latest[node],))
            copy.meta.update(val=node.meta["val"], of=node.name, **stage_mark(node))
            self.kept[node] = copy

    def add_turn(self, forward_outputs: Sequence[Any]) -> None:
        self.left = tuple(fx.map_arg(list(forward_outputs), self.value))
        marked = tuple(v for v in self.left if isinstance(v, fx.Node))
        self.graph.call_function(turn, marked).meta["of"] = TURN
        self.views.clear()
        self.latest.update(self.kept)

    def add_operator(self, node: fx.Node) -> None:
        again = node in self.latest
        if node in self.replayed and not again:
            self._keep_state(node)
        made = self._replay(node) if node in self.replayed and again else self._copy(node)
        made.meta["of"] = node.name
        made.meta["recomputed"] = again or AGAIN in node.meta
        self.latest[node] = made
        self._forget_views(node)
        for item in node.users:
            if is_item(item):
                copy = self.graph.node_copy(item, {node: made}.__getitem__)
                copy.meta["of"] = item.name
                self.latest[item] = copy

    def add_move(self, move: Move) -> None:
        arrived = self.moves.add(move, self.latest[move.value])
        if arrived is not None:
            self.latest[move.value] = arrived
            self._forget(set(self.storages.of[move.value]))

    def _copy(self, node: fx.Node) -> fx.Node:
        return self.graph.node_copy(node, self.value)

    def _keep_state(self, node: fx.Node) -> None:
        self.states[node] = keep_state(self.graph, node)

    def _replay(self, node: fx.Node) -> fx.Node:
        args = fx.map_arg(node.args, self.value)
        kwargs = fx.map_arg(node.kwargs, self.value)
        drawn: Any = (self.states[node], device_of(node), node.target)
        made = self.graph.call_function(replay, (*drawn, *args), kwargs)
        made.meta.update(node.meta)
        return made

    def _forget_views(self, node: fx.Node) -> None:
        """Views of an older copy must not be handed out once there is a newer one."""
        stale = set(self.storages.made_at(node)) | {
            s for item in node.users if is_item(item) for s in self.storages.of[item]
        }
        self._forget(stale)

    def _forget(self, stale: set[int]) -> None:
        for view in [v for v in self.views if stale & set(self.storages.of[v])]:
            del self.views[view]

    def add_outputs(self, outputs: Sequence[Any], forward_outputs: int) -> None:
        gradients = fx.map_arg(list(outputs[forward_outputs:]), self.value)
        self.graph.output((*self.left, *gradients))


def item_of(node: fx.Node) -> int:
    """Index that an item node takes."""
    assert node.target is py_operator.getitem
    return node.args[1]  # type: ignore[return-value]
