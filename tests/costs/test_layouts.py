"""Layouts tell apart what lies otherwise in memory, and nothing else."""

from __future__ import annotations

import pytest
import torch

from fxmem.costs.layouts import Layout, layouts, unlike


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (torch.empty(2, 3), torch.empty(3, 2).t(), False),
        (torch.empty(2, 1, 3), torch.empty_strided((2, 1, 3), (3, 9, 1)), True),
        (torch.empty(0, 3), torch.empty_strided((0, 3), (7, 7)), True),
        (torch.empty(2), torch.empty(2).double(), False),
        (torch.empty(2, 1), torch.empty(1, 2), False),
        (torch.empty(()), torch.empty((), device="meta"), True),
    ],
)
def test_same_layouts(left: torch.Tensor, right: torch.Tensor, same: bool) -> None:
    one, other = Layout.of(left), Layout.of(right)
    assert one is not None and other is not None
    assert one.same(other) == other.same(one) == same


def test_no_layout() -> None:
    assert Layout.of(3) is None and Layout.of(torch.eye(2).to_sparse()) is None


def test_unlike() -> None:
    pair = torch.empty(2, 3), torch.empty(3, 2).t()
    one, other = layouts(pair)
    assert layouts(list(pair)) == (one, other) and layouts(pair[0]) == (one,)
    assert not unlike((one, other), (one, other))
    assert unlike((one, other), (one, one))
    # Nothing is known of what is no tensor in either.
    assert not unlike((one, None), (one, other)) and not unlike((one, other), (one, None))
    assert unlike((one, None), (other, other))
