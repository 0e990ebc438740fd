"""How results lie in memory."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """How a tensor lies in memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, value: object) -> Layout | None:
        """That of a tensor, fake or real; None of what is none, or has no strides."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return None
        dtype = str(value.dtype).removeprefix("torch.")
        return cls(dtype, tuple(value.shape), tuple(value.stride()))

    def same(self, other: Layout) -> bool:
        """Do both lie alike? Strides of dimensions with one element say nothing."""
        pairs = zip(self.shape, self.strides, other.strides, strict=True)
        return self[:2] == other[:2] and (
            0 in self.shape or all(new == old for size, new, old in pairs if size > 1)
        )


#: Of each of an operator's results; None of one that is no tensor, or has no strides.
Layouts = tuple[Layout | None, ...]


def layouts(value: object) -> Layouts:
    """Those of an operator's result or results."""
    return tuple(map(Layout.of, value if isinstance(value, (tuple, list)) else (value,)))


def unlike(real: Layouts, told: Layouts) -> bool:
    """Does a tensor lie otherwise than told? Where either has none there is nothing to compare."""
    pairs = zip(real, told, strict=False)
    return any(r is not None and t is not None and r != t for r, t in pairs)
