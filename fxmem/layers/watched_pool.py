"""A pool that says when it is nearly full."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from ..pool import ActivationPool
from .sharding import describe

log = logging.getLogger("fxmem")


class WatchedPool(ActivationPool):
    """An `ActivationPool` that logs a warning each time that it grows past a threshold.

    Parameters
    ----------
    limit_bytes : int
    threshold : float
        Share of the limit, in (0, 1].
    """

    def __init__(self, limit_bytes: int, threshold: float) -> None:
        super().__init__(limit_bytes)
        self.threshold = threshold

    def rent(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """As of `ActivationPool`."""
        before = self.held_bytes
        tensor = super().rent(shape, dtype=dtype, device=device)
        held = self.held_bytes
        if before <= self.threshold * self.limit_bytes < held:
            log.warning("the activation pool is at %s", describe(held, self.limit_bytes))
        return tensor
