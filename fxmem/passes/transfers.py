"""Nodes that move a value to slower memory and back, and wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx as fx
from torch._guards import detect_fake_mode

from ..runtime.transfer import copy_in, copy_out, wait_in, wait_out
from ..storages import tensor_bytes

Kind = Literal["out", "out_done", "in", "in_done"]


@dataclass(frozen=True)
class Move:
    """An entry of a sequence: what happens to a value between two operators.

    Attributes
    ----------
    kind : str
        ``"out"``: the copy to ``tier`` begins. ``"out_done"``: it is waited for; the value may be
        freed after. ``"in"``: memory is taken, and the copy back begins. ``"in_done"``: it is
        waited for; who reads the value from here on reads this copy.
    value : fx.Node
        Node of the traced graph; all of its storage is moved.
    tier : str
        A directory.
    stall : float
        Seconds that the step is expected to wait here.
    """

    kind: Kind
    value: fx.Node
    tier: str
    stall: float = 0.0


def is_movable(value: object) -> bool:
    """Can a new tensor of the same shape and strides take the place of this one's storage?"""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    if value.device.type != "cpu" or value.numel() == 0 or value.storage_offset() != 0:
        return False
    pairs = zip(value.shape, value.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    return tensor_bytes(value) == extent * value.element_size()


class Moves:
    """The transfers in a graph under construction."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.leaving: dict[tuple[fx.Node, str], fx.Node] = {}
        self.tickets: dict[tuple[fx.Node, str], fx.Node] = {}
        self.arriving: dict[tuple[fx.Node, str], fx.Node] = {}

    def add(self, move: Move, latest: fx.Node) -> fx.Node | None:
        """Add the node of one move; the new copy of the value, once it is there.

        Parameters
        ----------
        move : Move
        latest : fx.Node
            The latest copy of its value in the new graph.
        """
        key = (move.value, move.tier)
        if move.kind == "out":
            self.leaving[key] = latest
            self.tickets[key] = self._ticket(copy_out, (latest, move.tier, move.value.name), move)
        elif move.kind == "out_done":
            asked = (self.tickets[key], self.leaving.pop(key))
            self.tickets[key] = self._ticket(wait_out, asked, move)
        elif move.kind == "in":
            value = move.value.meta["val"]
            layout = (tuple(value.shape), tuple(value.stride()), value.dtype)
            self.arriving[key] = self._copy(copy_in, (self.tickets[key], *layout), move)
        else:
            asked = (self.tickets[key], self.arriving.pop(key))
            return self._copy(wait_in, asked, move)
        return None

    def _ticket(self, target: Callable[..., Any], args: tuple[Any, ...], move: Move) -> fx.Node:
        node = self.graph.call_function(target, args)
        mode = detect_fake_mode(move.value.meta["val"])
        number = torch.empty(1, dtype=torch.int64)
        value = number if mode is None else mode.from_tensor(number, static_shapes=True)
        node.meta.update(val=value, ticket=True, of=move.value.name, stall=move.stall)
        return node

    def _copy(self, target: Callable[..., Any], args: tuple[Any, ...], move: Move) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta.update(move.value.meta)
        node.meta.update(of=move.value.name, stall=move.stall)
        return node
