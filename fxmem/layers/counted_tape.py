"""A tape that counts what it runs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .sharding import move
from .tape import Retain, Tape


@dataclass
class MemoryStatistics:
    """Counts since the manager was made.

    Attributes
    ----------
    forward_layers, backward_layers, recomputed_layers : int
        Layer runs of each kind.
    peak_input_bytes : int
        Most bytes of layer inputs that were kept at once.
    transfers, transferred_bytes : int
        Tensors moved between stages.
    """

    forward_layers: int = 0
    backward_layers: int = 0
    recomputed_layers: int = 0
    peak_input_bytes: int = 0
    transfers: int = 0
    transferred_bytes: int = 0


class CountedTape(Tape):
    """A `Tape` whose layer runs and transfers are counted, where that is wanted.

    Parameters
    ----------
    statistics : MemoryStatistics, optional
        Where to count; without it nothing is counted.
    """

    def __init__(self, statistics: MemoryStatistics | None = None) -> None:
        super().__init__()
        self.statistics = statistics

    def forward(
        self, layer: nn.Module, x: Tensor, index: int, retain: Retain, run: Hashable = 0
    ) -> Tensor:
        """As of `Tape`."""
        output = super().forward(layer, x, index, retain, run)
        if (counts := self.statistics) is not None:
            counts.forward_layers += 1
            counts.peak_input_bytes = max(counts.peak_input_bytes, self.input_bytes)
        return output

    def backward(
        self, layer: nn.Module, grad_output: Tensor, index: int, run: Hashable = 0
    ) -> Tensor | None:
        """As of `Tape`."""
        before = self.recomputed
        passed = super().backward(layer, grad_output, index, run)
        if self.statistics is not None:
            self.statistics.backward_layers += 1
            self.statistics.recomputed_layers += self.recomputed - before
        return passed

    def transfer(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A copy of the tensor on the device."""
        moved = move(tensor, device)
        if self.statistics is not None:
            self.statistics.transfers += 1
            self.statistics.transferred_bytes += moved.nbytes
        return moved
