"""Overwrite an input that is read for the last time instead of allocating the output."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
import torch.fx as fx
from torch._ops import OpOverload

from ..runtime.random import turn
from ..storages import StorageMap, map_storages, tensor_bytes
from .module import module_of

aten = torch.ops.aten

# Kernels that finish reading a row before they write it, checked bit for bit by
# tests/passes/test_reuse.py; on the CPU and along the last dimension only.
_ROW_BY_ROW = {
    aten._log_softmax.default: 1,
    aten._softmax.default: 1,
    aten._log_softmax_backward_data.default: 2,
    aten._softmax_backward_data.default: 2,
}

# Kernels whose in-place form rounds otherwise than the functional one in these dtypes (found by
# tests/passes/test_reuse.py among all pointwise operators of 2.13).
_ROUNDS_OTHERWISE = {aten.mul.Scalar: (torch.bfloat16, torch.float16)}


def reuse(joint: fx.GraphModule) -> fx.GraphModule:
    """Return a new graph in which operators write over inputs that die at them.

    A value made before the turn and read after it is left alone: a second backward through
    the same graph (``retain_graph=True``) reads it again.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    storages = map_storages(joint.graph)
    last_use = _last_use(joint.graph, storages)
    position = {node: i for i, node in enumerate(joint.graph.nodes)}
    turn_at = next((position[n] for n in joint.graph.nodes if n.target is turn), -1)
    for node in joint.graph.nodes:
        chosen = None
        if node.op == "call_function":
            for candidate in candidates(node, storages):
                (storage,) = storages.of[candidate]
                made = position[storages.made_by[storage]]
                crosses = made < turn_at < position[node]
                if last_use[storage] is node and not crosses:
                    chosen = candidate
                    break
        env[node] = graph.node_copy(node, env.__getitem__)
        if chosen is not None:
            _write_into(env[node], env[chosen], position=_argument_of(node, chosen))
    graph.lint()
    return module_of(joint, graph)


def candidates(node: fx.Node, storages: StorageMap) -> Iterator[fx.Node]:
    """Arguments of ``node`` that its result may be written over, if they die there.

    Such an argument has the result's dtype, shape and strides, covers all of its storage,
    and no other argument looks at that storage in another way.
    """
    target, value = node.target, node.meta.get("val")
    if not isinstance(target, OpOverload) or not isinstance(value, torch.Tensor):
        return
    if not _writes_in_place(node, value):
        return
    for argument in node.all_input_nodes:
        old = argument.meta.get("val")
        if not isinstance(old, torch.Tensor) or len(storages.of[argument]) != 1:
            continue
        (storage,) = storages.of[argument]
        sharing = [a for a in node.all_input_nodes if storage in storages.of[a]]
        if (
            storages.made_by[storage].op == "call_function"
            and all(_same(a.meta["val"], value) for a in sharing)
            and tensor_bytes(old) == tensor_bytes(value) == value.numel() * value.element_size()
            and overload_into(target, _argument_of(node, argument)) is not None
        ):
            yield argument


def _writes_in_place(node: fx.Node, value: torch.Tensor) -> bool:
    assert isinstance(node.target, OpOverload)
    if value.dtype in _ROUNDS_OTHERWISE.get(node.target, ()):
        return False
    if torch.Tag.pointwise in node.target.tags:
        return torch.Tag.nondeterministic_seeded not in node.target.tags
    if node.target in _ROW_BY_ROW and value.device.type == "cpu":
        dim = node.args[_ROW_BY_ROW[node.target]]
        return dim in (-1, value.dim() - 1) and value.is_contiguous()
    return False


def _same(old: torch.Tensor, new: torch.Tensor) -> bool:
    return (
        old.dtype == new.dtype
        and old.shape == new.shape
        and old.stride() == new.stride()
        and old.storage_offset() == new.storage_offset()
    )


def _argument_of(node: fx.Node, argument: fx.Node) -> int:
    """Position of ``argument`` among the positional arguments of ``node``, -1 if none."""
    return next((i for i, a in enumerate(node.args) if a is argument), -1)


@cache
def overload_into(target: OpOverload, position: int) -> tuple[OpOverload, str | None] | None:
    """The overload that writes into an argument, and its ``out`` keyword if it has one.

    Overloads that were generated from the functional form compute and copy; they are told
    by their tag and passed over. Where only those exist the in-place form serves, for the
    first argument.
    """
    packet = target.overloadpacket
    wanted = [(a.name, str(a.type)) for a in target._schema.arguments]
    for name in packet.overloads():
        overload = getattr(packet, name)
        outs = [a for a in overload._schema.arguments if a.is_out]
        plain = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
        if len(outs) == 1 and plain == wanted and torch.Tag.generated not in overload.tags:
            return overload, outs[0].name
    in_place = getattr(aten, packet.__name__ + "_", None)
    if position == 0 and in_place is not None and target._overloadname in in_place.overloads():
        return getattr(in_place, target._overloadname), None
    return None


def _write_into(node: fx.Node, argument: fx.Node, position: int) -> None:
    assert isinstance(node.target, OpOverload)
    found = overload_into(node.target, position)
    assert found is not None
    node.target, keyword = found
    if keyword is not None:
        node.kwargs = {**node.kwargs, keyword: argument}


def _last_use(graph: fx.Graph, storages: StorageMap) -> dict[int, fx.Node]:
    last: dict[int, fx.Node] = {}
    for node in graph.nodes:
        for storage in storages.read_by(node):
            last[storage] = node
    return last
