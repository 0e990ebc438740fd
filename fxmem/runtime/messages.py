"""What stages send each other: the memory of a tensor, in the order that the other end reads."""

from __future__ import annotations

import torch

from ..costs.layouts import Layout
from ..errors import FxmemError


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, as bytes: what any backend can send."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


def laid_out(tensor: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    """The tensor, copied if the other end would read its memory in another order.

    Parameters
    ----------
    tensor : torch.Tensor
    told : torch.Tensor
        The fake one of the trace, by which the other end makes room.

    Raises
    ------
    FxmemError
        The tensor is of another dtype or shape than traced.
    """
    real, traced = Layout.of(tensor), Layout.of(told)
    if real is not None and traced is not None and real.same(traced):
        return tensor
    if tensor.dtype != told.dtype or tensor.shape != told.shape:
        raise FxmemError(
            f"a stage sends {tensor.dtype} of {list(tensor.shape)} where {told.dtype} of "
            f"{list(told.shape)} was traced. Move the cut to another operator."
        )
    room = torch.empty_strided(told.shape, told.stride(), dtype=told.dtype, device=tensor.device)
    return room.copy_(tensor)
