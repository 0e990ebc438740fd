"""Checks after each pass: the new graph computes what the traced one does."""

from __future__ import annotations

import torch.fx as fx
from torch._ops import OpOverload

from ..errors import FxmemError
from ..runtime.random import replay, rng_state, turn
from ..runtime.transfer import copy_in, wait_in, wait_out
from ..storages import is_random, is_transfer, map_storages
from .split import SplitStep, is_tangent


class PassError(FxmemError):
    """A pass broke the graph; a fault of fxmem, reported before anything runs."""


def verify_layout(joint: fx.GraphModule, laid_out: fx.GraphModule) -> None:
    """Each node of ``laid_out`` stands for one of ``joint`` and reads what that one reads.

    Raises
    ------
    PassError
        A wrong argument, a value overwritten before its last use, a missing random draw, or
        a tangent used before the turn. The message names the node and its neighbourhood.
    """
    original = {node.name: node for node in joint.graph.nodes}
    _verify_arguments(original, laid_out)
    _verify_overwrites(laid_out)
    _verify_turn(laid_out)
    drawn = [n.name for n in joint.graph.nodes if is_random(n)]
    first = [n.meta["of"] for n in laid_out.graph.nodes if is_random(n)]
    if list(dict.fromkeys(first)) != drawn:
        raise PassError(f"random draws changed: {drawn} became {first}")


def _verify_arguments(original: dict[str, fx.Node], laid_out: fx.GraphModule) -> None:
    """Follow each value back to the traced node that it is a copy of, and compare arguments."""
    of: dict[fx.Node, fx.Node] = {}
    for node in laid_out.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            of[node] = next(n for n in original.values() if n.target == node.target)
            continue
        if node.op != "call_function" or node.target is turn:
            continue
        if node.target is rng_state and "of" not in node.meta:  # set aside for a replay
            continue
        if is_transfer(node):
            of[node] = _moved(node, of)
            continue
        source = original.get(str(node.meta.get("of", "")))
        if source is not None and source.op == "placeholder":  # a copy of its old value
            of[node] = of[node.all_input_nodes[0]]
            continue
        replayed = node.target is replay and source is not None and source.target is not replay
        args = node.args[3:] if replayed else node.args
        if source is None:
            raise PassError(f"{_where(node)}\nstands for no node of the traced graph")
        written = _out_arguments(node)
        kwargs = {key: value for key, value in node.kwargs.items() if key not in written}
        expected = fx.map_arg((source.args, source.kwargs), lambda n: n.name)
        found = fx.map_arg((args, kwargs), lambda n: of[n].name)
        if list(expected) != list(found):
            raise PassError(f"{_where(node)}\nreads {found}, but {source.format_node()} {expected}")
        of[node] = source
    output = laid_out.graph.output_node()
    wanted = next(n for n in original.values() if n.op == "output").args[0]
    for new, old in zip(output.args[0], wanted, strict=True):  # type: ignore[arg-type]
        if isinstance(old, fx.Node) and of[new].name != old.name:
            raise PassError(f"output {old.name} became {of[new].name}")


def _moved(node: fx.Node, of: dict[fx.Node, fx.Node]) -> fx.Node:
    """The value that a transfer moves; a ticket stands for the value that went out with it."""
    ticket, *value = node.all_input_nodes
    if any(of[v] is not of[ticket] for v in value):
        raise PassError(f"{_where(node)}\nmoves {of[ticket].name}, but reads {of[value[0]].name}")
    if node.target is copy_in and ticket.target is not wait_out:
        raise PassError(f"{_where(node)}\nis asked back before it is known to be there")
    if node.target is wait_in and value[0].target is not copy_in:
        raise PassError(f"{_where(node)}\nwaits for what was not asked back")
    return of[ticket]


def _out_arguments(node: fx.Node) -> set[str]:
    """Keywords that say only where the result goes; `_verify_overwrites` looks at those."""
    if not isinstance(node.target, OpOverload):
        return set()
    return {a.name for a in node.target._schema.arguments if a.is_out}


def _verify_overwrites(module: fx.GraphModule) -> None:
    storages = map_storages(module.graph)
    overwritten: dict[int, fx.Node] = {}
    fresh: dict[int, set[fx.Node]] = {}
    for node in module.graph.nodes:
        for argument in node.all_input_nodes:
            for storage in storages.of[argument]:
                if storage in overwritten and argument not in fresh[storage]:
                    raise PassError(
                        f"{_where(node)}\nreads {argument.name}, which "
                        f"{overwritten[storage].name} wrote over"
                    )
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            for storage in storages.of[node]:
                overwritten[storage], fresh[storage] = node, {node}
        elif node.op == "call_function":
            for storage in storages.of[node]:
                if storage in fresh:
                    fresh[storage].add(node)


def _verify_turn(module: fx.GraphModule) -> None:
    turned = False
    for node in module.graph.nodes:
        if node.target is turn:
            turned = True
        elif not turned and any(is_tangent(a) for a in node.all_input_nodes):
            raise PassError(f"{_where(node)}\nuses a tangent before the turn")
    if not turned:
        raise PassError("the graph has no turn from forward to backward")


def verify_split(step: SplitStep) -> None:
    """No node of either graph may still be the mark of the turn or read across it."""
    for module in (step.forward, step.backward):
        for node in module.graph.nodes:
            if node.target is turn:
                raise PassError("the turn was left in a graph")
    if any(is_tangent(n) for n in step.forward.graph.nodes):
        raise PassError("the forward graph has a tangent")


def _where(node: fx.Node) -> str:
    """The node with its neighbours, for messages."""
    lines = [node.prev.prev, node.prev, node, node.next]
    return "\n".join(f"  {n.format_node()}" for n in lines if n.op != "root")
