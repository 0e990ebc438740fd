"""Small modules of the usual kinds.

Each is just large enough that a plan has something to decide, and small enough to trace fast.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Loss inside."""

    def __init__(self, width: int = 64, depth: int = 3, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(depth))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return F.mse_loss(x, y)


class Outside(nn.Module):
    """Loss outside: returns an activation."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Block(nn.Module):
    """Transformer block with dropout at each of its usual places."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in split)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        scores = F.dropout(scores.softmax(-1), self.drop, self.training)
        mixed = (scores @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(mixed), self.drop, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.drop, self.training)


class Transformer(nn.Module):
    """Token embedding tied to the head, blocks, cross entropy inside."""

    def __init__(self, drop: float = 0.1, width: int = 32, depth: int = 2, words: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, 2, drop) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


class ConvNet(nn.Module):
    """Convolutions and BatchNorm, whose running statistics the step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = x + F.relu(self.norm2(self.conv2(x)))
        x = F.max_pool2d(x, 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Blocks(nn.Module):
    """Modules within modules, and a loss outside of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Recurrent(nn.Module):
    """One layer run many times: gradients of the same weight are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        for _ in range(4):
            h = torch.tanh(self.cell(h) + x)
        return h.square().mean()


class Attention(nn.Module):
    """The fused attention kernel, whose results are several."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(2, 16, 2, 16).transpose(1, 2) for t in split)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(2, 16, 32)).square().mean()
