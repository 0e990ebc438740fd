"""Run a planned step once, before it is trusted, and read its peak from the allocator.

The graphs are functional: running them on the step's real inputs writes to no parameter,
buffer or gradient, and the random generators are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes  # there in 2.11 to 2.15

from ..allocator import device_peaks, peak_of_calls
from .native import Native

Boxed = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Proof:
    """What the allocator told of one run.

    Attributes
    ----------
    peak_bytes : int
        Most held above what was there at the start.
    events : array or None
        Allocator events, as `runtime.native` records them, until the gradients are there.
    turn : int
        How many of the events belong to the forward part.
    device_peaks : tuple of int
        Most held on each of several logical devices.
    gradient_strides : tuple of tuple of int or None
        Of what backward made; None of what is no tensor.
    """

    peak_bytes: int
    events: np.ndarray | None = None
    turn: int = 0
    device_peaks: tuple[int, ...] = ()
    gradient_strides: tuple[tuple[int, ...] | None, ...] = ()


def prove(
    forward: Boxed,
    backward: Boxed,
    args: Sequence[Any],
    forward_outputs: int,
    written_back: int,
    tangents: Sequence[torch.Tensor],
    device: torch.device,
    native: Native | None = None,
    logical: int = 0,
) -> Proof:
    """Run forward and backward once.

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
    native : Native, optional
        Records the events; ``forward`` and ``backward`` are then to set its marks.
    logical : int
        How many logical devices share the step, if there are several.
    """
    seen: list[np.ndarray] = []
    strides: list[tuple[int, ...] | None] = []

    def run(function: Boxed, arguments: list[Any]) -> Any:
        try:
            return function(arguments)
        finally:
            if native is not None:
                native.mark(-1)

    def step() -> None:
        if native is not None:
            native.record(1)
        made = list(run(forward, list(args)))
        held, saved = made[written_back:forward_outputs], made[forward_outputs:]
        made.clear()
        if native is not None:
            seen.append(native.recorded())
        starts = [torch.ones(t.shape, dtype=t.dtype, device=t.device) for t in tangents]
        arguments = [*saved, *starts]
        saved.clear()
        gradients = run(backward, arguments)
        strides.extend(g.stride() if isinstance(g, torch.Tensor) else None for g in gradients)
        if native is not None:
            seen.append(native.recorded())
            native.record(0)
        held.clear()
        del gradients

    devices = [device] if device.type == "cuda" else []
    # The first call may come from within a trace, whose modes would allocate beside the step.
    with _disable_current_modes(), torch.random.fork_rng(devices=devices), torch.no_grad():
        if logical:
            peaks = device_peaks(step, logical)
            return Proof(sum(peaks), device_peaks=peaks, gradient_strides=tuple(strides))
        (peak,) = peak_of_calls([step], device)
    events, turn = (seen[1], len(seen[0])) if seen else (None, 0)
    return Proof(peak, events, turn, gradient_strides=tuple(strides))
