"""Random draws that are made again must come out the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def turn(*forward_outputs: torch.Tensor) -> None:
    """Mark the turn from forward to backward in a rewritten joint graph; never runs."""
    raise RuntimeError("the turn is a mark; split the graph before running it")


def rng_state(device: str) -> torch.Tensor:
    """Return the state of the device's generator, as a byte tensor on the CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def _set_rng_state(device: str, state: torch.Tensor) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def replay(
    state: torch.Tensor, device: str, target: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Run ``target`` from ``state`` and leave the generator as it was found.

    Parameters
    ----------
    state : torch.Tensor
        What `rng_state` returned just before the first run.
    device : str
        Device whose generator ``target`` draws from.
    """
    now = rng_state(device)
    _set_rng_state(device, state)
    try:
        return target(*args, **kwargs)
    finally:
        _set_rng_state(device, now)
