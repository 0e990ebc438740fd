"""Small models for pipelines, and what one process gets with the same microbatches."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

MICROBATCHES = 8


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.transpose(1, 2)).masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out(scores @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class TinyGPT(nn.Module):
    """Tied embedding and head; positions in a buffer."""

    def __init__(self, width: int = 32, layers: int = 4, vocabulary: int = 61) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


class TinyUNet(nn.Module):
    """Skips from the way down to the way up, and running statistics."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, width, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.up = nn.ModuleList(nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(3))
        self.last = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for conv, norm in zip(self.down, self.norms, strict=True):
            skips.append(x)
            x = nn.functional.silu(norm(conv(x)))
        for conv in self.up:
            x = nn.functional.silu(conv(torch.cat([x, skips.pop()], 1)))
        return self.last(x)


class Layers(nn.Module):
    """Each layer's input is needed by its own gradient, is as large as any, and dear to make."""

    def __init__(self, width: int = 64, count: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x


Case = tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]


def tiny_gpt() -> Case:
    torch.manual_seed(0)
    tokens = torch.randint(0, 61, (32, 17))
    return (
        TinyGPT(),
        tokens[:, :-1].contiguous(),
        tokens[:, 1:].contiguous(),
        (nn.functional.cross_entropy),
    )


def tiny_unet() -> Case:
    torch.manual_seed(0)
    return (
        TinyUNet(),
        torch.randn(32, 2, 16, 16),
        torch.randn(32, 2, 16, 16),
        nn.functional.mse_loss,
    )


def layers() -> Case:
    torch.manual_seed(0)
    return Layers(), torch.randn(1024, 64), torch.randn(1024, 64), nn.functional.mse_loss


def alone(case: Case) -> tuple[float, dict[str, Tensor | None], dict[str, Tensor]]:
    """Loss, gradients and buffers in one process, microbatch by microbatch."""
    model, x, target, loss_fn = case
    model = copy.deepcopy(model)
    total = 0.0
    for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        loss = loss_fn(model(part), wanted) / MICROBATCHES
        loss.backward()
        total += float(loss.detach())
    return total, {n: p.grad for n, p in model.named_parameters()}, dict(model.named_buffers())
