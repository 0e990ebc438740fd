"""Random draws in a graph: the generator's state that a second run of one needs."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx
from torch._guards import detect_fake_mode

from ..runtime.random import rng_state
from .shard import stage_mark


def device_of(node: fx.Node) -> str:
    """Device of what a draw makes."""
    return str(_first(node).device)


def keep_state(graph: fx.Graph, draw: fx.Node) -> fx.Node:
    """Insert a node that holds the state of the generator that ``draw`` takes from.

    Its value is fake, as all others of the graph: from 2.14 on AOTAutograd counts fake ones
    among what is saved, and no others (read in 2.14.1, `_aot_autograd/graph_compile.py`).
    """
    device = device_of(draw)
    state = graph.call_function(rng_state, (device,))
    value, mode = rng_state(device), detect_fake_mode(_first(draw))
    state.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
    state.meta |= stage_mark(draw)
    return state


def _first(node: fx.Node) -> torch.Tensor:
    value: Any = node.meta["val"]
    first = value[0] if isinstance(value, (tuple, list)) else value
    assert isinstance(first, torch.Tensor)
    return first
