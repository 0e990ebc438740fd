"""Every small module with the arguments of one step, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.modules import MLP, Attention, ConvNet, Outside, Recurrent, Transformer
from tests.peculiar import (
    Autocast,
    Frozen,
    InPlace,
    Keywords,
    Noise,
    Number,
    PassesThrough,
    Several,
    TakesGradient,
    Unused,
    Views,
    WritesBuffer,
    WritesInput,
)


@dataclass(frozen=True)
class Case:
    """A module and the arguments of one step.

    Attributes
    ----------
    module : nn.Module
    args, kwargs
        Of the call.
    exact_gradients : bool
        Are eager's gradients met bit for bit, or only closely (sums in another order)?
    """

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    exact_gradients: bool = True


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def _pair(
    rows: int = 48, width: int = 64, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    return _x(rows, width, dtype=dtype), _x(rows, width, dtype=dtype)


def _keywords() -> Case:
    x, y = _pair()
    return Case(Keywords(), (x,), {"scale": 0.5, "batch": {"target": y, "bias": _x(64)}})


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(MLP(), _pair()),
    "outside": lambda: Case(Outside(), (_x(48, 64),)),
    "transformer": lambda: Case(Transformer(), (torch.randint(0, 50, (4, 24)),)),
    "no dropout": lambda: Case(Transformer(drop=0.0), (torch.randint(0, 50, (4, 24)),)),
    "convnet": lambda: Case(ConvNet(), (_x(4, 3, 16, 16), torch.randint(0, 10, (4,)))),
    "frozen": lambda: Case(Frozen(), _pair()),
    "dict": lambda: Case(Several("dict"), (_x(48, 64),)),
    "tuple": lambda: Case(Several("tuple"), (_x(48, 64),)),
    "dataclass": lambda: Case(Several("dataclass"), (_x(48, 64),)),
    "keywords": _keywords,
    "bfloat16": lambda: Case(MLP(dtype=torch.bfloat16), _pair(dtype=torch.bfloat16)),
    "float64": lambda: Case(MLP(dtype=torch.float64), _pair(dtype=torch.float64)),
    "autocast": lambda: Case(Autocast(), _pair()),
    "noise": lambda: Case(Noise(), (_x(48, 64),)),
    "in place": lambda: Case(InPlace(), (_x(48, 64),)),
    "buffers": lambda: Case(WritesBuffer(), (_x(48, 64),)),
    "writes input": lambda: Case(WritesInput(), (_x(48, 64), torch.zeros(48, 64))),
    "views": lambda: Case(Views(), (_x(48, 64),)),
    "unused": lambda: Case(Unused(), (_x(48, 64),)),
    "passes through": lambda: Case(PassesThrough(), (_x(48, 64),)),
    "number": lambda: Case(Number(), (*_pair(), 0.5, 2)),
    "recurrent": lambda: Case(Recurrent(), (_x(48, 64),)),
    "attention": lambda: Case(Attention(), (_x(2, 16, 32),)),
    "input gradient": lambda: Case(TakesGradient(), (_x(48, 64).requires_grad_(),)),
}


def make(name: str, seed: int = 0) -> Case:
    """The case, always with the same numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CASES[name]()
