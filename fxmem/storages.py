"""Which node's value lies in which storage: bytes belong to storages, and views share.

Read from operator schemas, which say what a result aliases, so that the analysis holds
for graphs before and after our passes (``out=`` overloads and in-place operators alias
the argument that they write).
"""

from __future__ import annotations

import operator as py_operator
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.fx as fx
from torch._ops import OpOverload
from torch.fx.node import _side_effectful_functions  # private; same in 2.11 to 2.13

from .runtime.random import replay
from .runtime.transfer import TRANSFERS, wait_in, wait_out

aten = torch.ops.aten

CUDA_BLOCK_BYTES = 512

# Results that share the argument's storage although their schema does not say so.
_UNDECLARED_VIEWS = {aten._unsafe_view.default, aten._reshape_alias.default}

# These copy all of their first argument's storage, of which it may be a small view. Fake
# results do not always tell: torch's cache of them leaves storage sizes out of its key.
_COPY_WHOLE_STORAGE = {
    aten.copy.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
}


# Their schemas name no effect, and a second run of one would wait for ever.
_COLLECTIVES = {"_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor", "symm_mem"}


@dataclass(frozen=True)
class StorageMap:
    """Storages of one graph.

    Attributes
    ----------
    of : dict
        Node -> numbers of the storages that its value lies in (several for a node that
        returns a tuple or list), one for each tensor; -1 for a part that is no tensor.
    size : list of int
        Bytes of each storage.
    made_by : list of fx.Node
        The node that brings each storage into being (an operator, or a placeholder).
    """

    of: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    size: list[int] = field(default_factory=list)
    made_by: list[fx.Node] = field(default_factory=list)

    def new(self, node: fx.Node, value: object) -> int:
        """Register a storage for one tensor that ``node`` makes; -1 when it is no tensor."""
        if not isinstance(value, torch.Tensor):
            return -1
        # Tickets of moved values lie in memory of numpy's.
        self.size.append(0 if node.meta.get("ticket") else allocated_bytes(value))
        self.made_by.append(node)
        return len(self.size) - 1

    def join(self, storage: int, other: int) -> None:
        """Take ``other`` for ``storage``: the graph has two inputs of one block."""
        for node, found in self.of.items():
            if other in found:
                self.of[node] = tuple(storage if s == other else s for s in found)

    def read_by(self, node: fx.Node) -> tuple[int, ...]:
        """Storages of all arguments of ``node``, without repeats, in order."""
        found = [s for arg in node.all_input_nodes for s in self.of[arg] if s >= 0]
        return tuple(dict.fromkeys(found))

    def made_at(self, node: fx.Node) -> tuple[int, ...]:
        """Storages that ``node`` itself brings into being."""
        return tuple(s for s in self.of[node] if s >= 0 and self.made_by[s] is node)


def tensor_bytes(value: torch.Tensor) -> int:
    """Bytes of the storage behind a tensor (of the fake one, when it is fake)."""
    if value.layout is not torch.strided:
        return value.numel() * value.element_size()
    return int(value.untyped_storage().nbytes())


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that the allocator hands out for a tensor's storage.

    CUDA's caching allocator rounds to 512 bytes (``kMinBlockSize``, CUDACachingAllocator.cpp);
    a meta tensor stands for one on such a device.
    """
    size = tensor_bytes(value)
    if value.device.type in ("cuda", "meta"):
        return -(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES
    return size


def map_storages(graph: fx.Graph) -> StorageMap:
    """Assign storages to every node of ``graph``.

    Parameters
    ----------
    graph : fx.Graph
        Nodes carry their fake value in ``meta["val"]``.
    """
    found = StorageMap()
    for node in graph.nodes:
        if node.op == "output":
            found.of[node] = ()
        elif node.op == "call_function" and node.target is py_operator.getitem:
            found.of[node] = _item(found, node)
        else:
            aliased = aliased_argument(node)
            if aliased is None:
                values = _values(node)
                found.of[node] = tuple(found.new(node, value) for value in values)
                if node.target in _COPY_WHOLE_STORAGE:
                    _copy_size(found, node)
            else:
                # A list of views (split, unbind) shares its argument's one storage.
                found.of[node] = found.of[aliased][:1] * max(1, len(_values(node)))
    return found


def _copy_size(found: StorageMap, node: fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    old, new = source.meta["val"], node.meta["val"]
    if 0 not in old.stride() and old.dtype == new.dtype:
        found.size[found.of[node][0]] = found.size[found.of[source][0]]


def _values(node: fx.Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _item(found: StorageMap, node: fx.Node) -> tuple[int, ...]:
    source, index = node.args
    assert isinstance(source, fx.Node) and isinstance(index, int)
    return (found.of[source][index],)


def aliased_argument(node: fx.Node) -> fx.Node | None:
    """The argument whose storage the first result of ``node`` lies in, or None."""
    if node.target is wait_out:
        return node.all_input_nodes[0]
    if node.target is wait_in:
        return node.all_input_nodes[1]
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    if node.target in _UNDECLARED_VIEWS:
        first = node.args[0]
        return first if isinstance(first, fx.Node) else None
    schema = node.target._schema
    if not schema.returns or schema.returns[0].alias_info is None:
        return None
    # A list of views (split, unbind) names its elements' alias nowhere that Python can read.
    names = None if node.target.is_view else schema.returns[0].alias_info.before_set
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None and (names is None or alias.before_set & names):
            value = (
                node.kwargs.get(argument.name)
                if argument.kwarg_only or position >= len(node.args)
                else node.args[position]
            )
            return value if isinstance(value, fx.Node) else None
    return None


def is_view(node: fx.Node) -> bool:
    """Does ``node`` only look at a storage that exists already (no computation)?"""
    if node.op != "call_function":
        return False
    if node.target is py_operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and (is_view(source) or source.op != "call_function")
    target = node.target
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        return False
    return aliased_argument(node) is not None


def is_item(node: fx.Node) -> bool:
    """Does ``node`` take one result out of an operator that returns several?"""
    return node.op == "call_function" and node.target is py_operator.getitem and not is_view(node)


def is_random(node: fx.Node) -> bool:
    """Does ``node`` draw random numbers?"""
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        and not _draws_nothing(node)
    )


def is_effect(node: fx.Node) -> bool:
    """Does ``node`` do what others see: talk to other processes, print, assert?

    Such an operator runs once, at its place among the others of its kind.
    """
    if not isinstance(node.target, OpOverload):
        return node.target is not replay  # higher-order operators; `rng_state` has its place
    return node.target in _side_effectful_functions or is_collective(node)


def is_transfer(node: fx.Node) -> bool:
    """Does ``node`` move a value to slower memory or back, or wait for it?"""
    return node.op == "call_function" and node.target in TRANSFERS


def is_collective(node: fx.Node) -> bool:
    """Does ``node`` wait for other processes, which must do the same?"""
    return isinstance(node.target, OpOverload) and node.target.namespace in _COLLECTIVES


def _draws_nothing(node: fx.Node) -> bool:
    """Attention kernels carry the tag for their dropout; at probability 0 they draw nothing."""
    assert isinstance(node.target, OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            if position < len(node.args):
                return bool(node.args[position] == 0.0)
            return bool(node.kwargs.get("dropout_p", argument.default_value) == 0.0)
    return False


def operators(graph: fx.Graph) -> Iterator[fx.Node]:
    """Nodes that compute something, in order: no placeholder, view, item or output."""
    for node in graph.nodes:
        if node.op in ("call_function", "call_module", "call_method") and not (
            is_view(node) or is_item(node) or is_transfer(node)
        ):
            yield node


def is_dense(value: torch.Tensor) -> bool:
    """Do its elements fill one piece of memory, each once?"""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
