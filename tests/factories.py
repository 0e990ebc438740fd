"""Models for the command line."""

from __future__ import annotations

import torch

from tests.cases import make


def tiny() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A transformer of two blocks."""
    case = make("transformer")
    return case.module, case.args


def by_name() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Inputs by keyword."""
    case = make("mlp")
    return case.module, dict(zip("xy", case.args, strict=True))


def layers() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Each layer's output is needed by its own gradient, and is as large as any."""
    body = [m for _ in range(4) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    return torch.nn.Sequential(*body), (torch.randn(1024, 64),)


def broken() -> None:
    """Fails by itself."""
    raise ZeroDivisionError("no model today")
