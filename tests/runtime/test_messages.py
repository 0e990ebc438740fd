"""What is sent is read in the order in which it was written."""

from __future__ import annotations

import pytest
import torch

from fxmem.errors import FxmemError
from fxmem.runtime.messages import as_bytes, laid_out


def received(sent: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    room = torch.empty_strided(told.shape, told.stride(), dtype=told.dtype)
    as_bytes(room).copy_(as_bytes(laid_out(sent, told)))
    return room


@pytest.mark.parametrize("told", [torch.empty(3, 4, 5), torch.empty(5, 3, 4).permute(1, 2, 0)])
@pytest.mark.parametrize("real", [torch.rand(3, 4, 5), torch.rand(5, 4, 3).permute(2, 1, 0)])
def test_any_order(told: torch.Tensor, real: torch.Tensor) -> None:
    assert torch.equal(received(real, told), real)


def test_as_told_is_not_copied() -> None:
    value = torch.rand(1, 4)
    assert laid_out(value, torch.empty_strided((1, 4), (9, 1))) is value


@pytest.mark.parametrize("told", [torch.empty(4, 3), torch.empty(3, 4).bfloat16()])
def test_another_value_is_refused(told: torch.Tensor) -> None:
    with pytest.raises(FxmemError, match="was traced"):
        laid_out(torch.rand(3, 4), told)
