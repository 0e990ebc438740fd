"""Merge common subexpressions.

Upstream's pass imports Inductor's pattern matcher, which takes longer than a cached plan, and its
list of random operators is not complete (read in 2.13).
"""

from __future__ import annotations

import operator as py_operator
from collections.abc import Hashable, Mapping
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload

from ..storages import StorageMap, is_effect, is_random, map_storages


def merge_common(graph: fx.Graph) -> fx.Graph:
    """Return a copy of ``graph`` in which equal calls on equal arguments are made once.

    Left as they are: random draws and effects, memory that is not filled, whatever shares a
    storage that an operator writes to, and outputs with their views, which stay apart.
    """
    storages = map_storages(graph)
    written = _written(graph, storages)
    leaving = {s for node in graph.output_node().all_input_nodes for s in storages.of[node]}
    copy, env = fx.Graph(), dict[fx.Node, fx.Node]()
    known: dict[Hashable, fx.Node] = {}
    for node in graph.nodes:
        key = None
        read = {s for argument in node.all_input_nodes for s in storages.of[argument]}
        made = {s for s in storages.of[node] if s >= 0}
        if _repeatable(node) and not (read | made) & written and not made & leaving:
            key = (node.target, _key(node.args, env), _key(node.kwargs, env))
            if key in known:
                env[node] = known[key]
                continue
        env[node] = copy.node_copy(node, env.__getitem__)
        if key is not None:
            known[key] = env[node]
    return copy


def _repeatable(node: fx.Node) -> bool:
    """Would the call give the same values once more?"""
    if node.target is py_operator.getitem:
        return node.op == "call_function"
    return (
        isinstance(node.target, OpOverload)
        and isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
        and not node.target._schema.is_mutable
        and not node.target.overloadpacket.__name__.startswith(("empty", "new_empty"))
        and not is_random(node)
        and not is_effect(node)
    )


def _written(graph: fx.Graph, storages: StorageMap) -> set[int]:
    return {
        storage
        for node in graph.nodes
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        for argument in node.all_input_nodes
        for storage in storages.of[argument]
    }


def _key(value: Any, env: Mapping[fx.Node, fx.Node]) -> Hashable:
    """Equal for equal arguments of one type: 1, 1.0 and True are three."""
    if isinstance(value, fx.Node):
        return env[value]
    if isinstance(value, (tuple, list)):
        return tuple(_key(part, env) for part in value)
    if isinstance(value, Mapping):
        return tuple((name, _key(part, env)) for name, part in value.items())
    if isinstance(value, slice):
        return (slice, _key((value.start, value.stop, value.step), env))
    # Nor is a zero the same as a negative one.
    return (type(value), repr(value) if isinstance(value, float) else value)
