"""Chains of layers, trained plainly and by a manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fxmem import TrainingMemoryManager


def transformer(count: int = 12, width: int = 32, dropout: float = 0.1) -> list[nn.Module]:
    return [
        nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=dropout, batch_first=True)
        for _ in range(count)
    ]


def convolutions() -> list[nn.Module]:
    def block() -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    return [block() for _ in range(5)]


def plain(layers: Sequence[nn.Module], x: Tensor) -> Tensor | None:
    """Gradient of the input after a plain step."""
    torch.manual_seed(3)
    y = x = x.detach().requires_grad_(x.is_floating_point())
    for layer in layers:
        y = layer(y)
    y.backward(torch.ones_like(y))
    return x.grad


def sequence(manager: TrainingMemoryManager) -> Callable[[Sequence[nn.Module], Tensor], object]:
    def step(layers: Sequence[nn.Module], x: Tensor) -> Tensor | None:
        torch.manual_seed(3)
        y = manager.forward_sequence(layers, x)
        gradient = torch.ones_like(y)
        del y
        return manager.backward_sequence(layers, gradient)

    return step


def one_by_one(manager: TrainingMemoryManager) -> Callable[[Sequence[nn.Module], Tensor], object]:
    def step(layers: Sequence[nn.Module], x: Tensor) -> Tensor | None:
        torch.manual_seed(3)
        for index, layer in enumerate(layers):
            x = manager.forward_with_checkpoint(layer, x, index)
        gradient: Tensor | None = torch.ones_like(x)
        del x
        for index in reversed(range(len(layers))):
            gradient = manager.backward_with_recompute(layers[index], gradient, index)
        return gradient

    return step


def sharded(manager: TrainingMemoryManager) -> Callable[[Sequence[nn.Module], Tensor], object]:
    def step(layers: Sequence[nn.Module], x: Tensor) -> Tensor | None:
        torch.manual_seed(3)
        return manager.sharded_backward(torch.ones_like(manager.sharded_forward(x)))

    return step


def outcome(
    step: Callable[[Sequence[nn.Module], Tensor], object],
    layers: Sequence[nn.Module],
    x: Tensor,
    steps: int = 2,
) -> list[object]:
    """Input gradient of each step, accumulated parameter gradients, buffers, generator."""
    whole = nn.ModuleList(layers)
    buffers = {n: b.clone() for n, b in whole.named_buffers()}
    whole.zero_grad()
    found: list[object] = [step(layers, x) for _ in range(steps)]
    found += [None if p.grad is None else p.grad.clone() for p in whole.parameters()]
    found += [b.clone() for b in whole.buffers()]
    found.append(torch.get_rng_state())
    with torch.no_grad():
        for name, buffer in whole.named_buffers():
            buffer.copy_(buffers[name])
    whole.zero_grad()
    return found


def same(new: Sequence[object], old: Sequence[object]) -> bool:
    """Bit-equal throughout."""
    assert len(new) == len(old)
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b
        for a, b in zip(new, old, strict=True)
    )
