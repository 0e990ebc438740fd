"""Run a planned step once, before it is trusted, and read its peak from the allocator.

The graphs are functional: running them on the step's real inputs writes to no parameter,
buffer or gradient, and the random generators are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..allocator import peak_of_calls

Boxed = Callable[[list[Any]], Any]


def proved_peak(
    forward: Boxed,
    backward: Boxed,
    args: Sequence[Any],
    forward_outputs: int,
    written_back: int,
    tangents: Sequence[torch.Tensor],
    device: torch.device,
) -> int:
    """Peak bytes of forward and backward above what is held at their start.

    Parameters
    ----------
    forward, backward : callable
        Boxed functions of the step's two graphs.
    args : sequence
        The step's primals.
    forward_outputs : int
        How many outputs of ``forward`` belong to the step; the rest are saved values.
    written_back : int
        How many of those, at the front, are copied into inputs and freed before backward.
    tangents : sequence of torch.Tensor
        Fake tensors of the shapes of the gradients that backward starts from.
    """

    def step() -> None:
        made = list(forward(list(args)))
        held, saved = made[written_back:forward_outputs], made[forward_outputs:]
        made.clear()
        starts = [torch.ones(t.shape, dtype=t.dtype, device=t.device) for t in tangents]
        arguments = [*saved, *starts]
        saved.clear()
        backward(arguments)
        held.clear()

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        (peak,) = peak_of_calls([step], device)
    return peak
