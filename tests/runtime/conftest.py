"""Fixtures of the arena's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from fxmem.runtime import arena as arenas


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Freed ranges read as not-a-number, so that a wrong lifetime changes a result."""
    monkeypatch.setattr(arenas, "POISON", True)
    torch._dynamo.reset()
    yield
    gc.collect()
