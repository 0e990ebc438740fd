"""Models for the command line."""

from __future__ import annotations

import torch

from tests.modules import make


def tiny() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A transformer of two blocks."""
    case = make("transformer")
    return case.module, case.args


def by_name() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Inputs by keyword."""
    case = make("mlp")
    return case.module, dict(zip("xy", case.args, strict=True))


def broken() -> None:
    """Fails by itself."""
    raise ZeroDivisionError("no model today")
