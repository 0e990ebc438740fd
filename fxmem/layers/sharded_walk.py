"""Forward and backward through layers that lie on several devices."""

from __future__ import annotations

import torch
from torch import Tensor

from ..manager_config import TrainingMemoryConfig
from .counted_tape import CountedTape
from .selector import LayerSelector
from .sharding import Shards
from .tape import Retain


class ShardedWalk:
    """The way through the devices and back.

    In microbatches, split from the first dimension, where the config asks for a pipeline: stage
    s runs microbatch m at clock s + m (Huang et al., 2019, GPipe).

    Parameters
    ----------
    shards : Shards
    config : TrainingMemoryConfig
    selector : LayerSelector
    tape : CountedTape
    """

    def __init__(
        self,
        shards: Shards,
        config: TrainingMemoryConfig,
        selector: LayerSelector,
        tape: CountedTape,
    ) -> None:
        self.shards = shards
        self._runs = config.micro_batch_count if config.use_pipeline_parallelism else None
        self._selector = selector
        self._tape = tape
        self._sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        """Output of the last layer, a leaf, on the last device."""
        if torch.is_grad_enabled():
            self._selector.choose_once(self.shards.layers, x)
        pieces = [x] if self._runs is None else list(x.chunk(self._runs))
        self._sizes = [len(piece) for piece in pieces] if self._runs is not None else []
        for visit, run in self.shards.clock(len(pieces)):
            pieces[run] = self._visit(visit, run, pieces[run])
        if self._runs is None:
            return pieces[0]
        return torch.cat([p.detach() for p in pieces]).requires_grad_(torch.is_grad_enabled())

    def backward(self, grad_output: Tensor) -> Tensor | None:
        """Gradient of the input; None where it can have none. Frees what was kept."""
        pieces: list[Tensor | None] = [grad_output]
        if self._sizes:
            pieces = list(grad_output.split(self._sizes))
        for visit, run in reversed(self.shards.clock(len(pieces))):
            piece = pieces[run]
            if piece is not None:
                pieces[run] = self._visit_back(visit, run, piece)
        self._tape.clear()
        found = [piece for piece in pieces if piece is not None]
        if len(found) < len(pieces):
            return None
        return torch.cat(found) if len(found) > 1 else found[0]

    def _visit(self, visit: int, run: int, x: Tensor) -> Tensor:
        x = self._tape.transfer(x, self.shards.device_of(visit))
        for position, index in enumerate(self.shards.layers_of(visit)):
            layer = self.shards.layers[index]
            retain = self._selector.retain(layer, index)
            if position == 0 and retain is Retain.NOTHING:
                retain = Retain.INPUT  # a segment stays on one device
            x = self._tape.forward(layer, x, index, retain, run)
        return x

    def _visit_back(self, visit: int, run: int, gradient: Tensor) -> Tensor | None:
        passed: Tensor | None = self._tape.transfer(gradient, self.shards.device_of(visit))
        for index in reversed(self.shards.layers_of(visit)):
            if passed is None:
                break
            passed = self._tape.backward(self.shards.layers[index], passed, index, run)
        return passed
