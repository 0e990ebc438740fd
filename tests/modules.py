"""Small modules, one for each thing that a traced step may hold.

Each is just large enough that a plan has something to decide, and small enough to trace fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass


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


class Frozen(nn.Module):
    """The first layers take no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = MLP(), nn.Linear(64, 64)
        self.body.layers[0].requires_grad_(False)
        self.body.layers[1].bias.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.body(self.head(x), y) + self.body(x, y)


@dataclass
class Named:
    """An output object."""

    loss: Tensor
    hidden: Tensor


register_dataclass(Named)


class Several(nn.Module):
    """Returns several values in a structure; the step uses some."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.side, self.kind = Outside(), nn.Linear(64, 16), kind

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        loss, side = hidden.square().mean(), torch.sigmoid(self.side(hidden))
        if self.kind == "dict":
            return {"loss": loss, "side": side, "hidden": hidden}
        if self.kind == "dataclass":
            return Named(loss, hidden)
        return loss, (side, [hidden, hidden.detach(), None, 3])


class Keywords(nn.Module):
    """Keyword arguments, one of them a nested structure, one left at its default."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = MLP(depth=2)

    def forward(
        self, x: Tensor, *, scale: float, batch: dict[str, Tensor], shift: Tensor | None = None
    ) -> Tensor:
        x = x * scale + batch["bias"]
        return self.layer(x if shift is None else x + shift, batch["target"])


class Autocast(nn.Module):
    """bfloat16 inside of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = MLP()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x, y)


class Noise(nn.Module):
    """Random draws of several kinds, one of which nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x + 0.1 * torch.randn_like(x)))
        torch.rand(5)
        h = h * torch.bernoulli(torch.full_like(h, 0.7))
        h = F.dropout(F.rrelu(self.outer(h), training=True), 0.2)
        return (h * torch.rand(64)).square().mean()


class InPlace(nn.Module):
    """In-place operators in the user's code, also through views and on an output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        h[:, :8].mul_(2.0)
        h.relu_()
        h = self.outer(h)
        h[0] = 0.5
        return h.mul_(2.0).add_(1.0).sigmoid_().sum()


class WritesBuffer(nn.Module):
    """A counter, an average and an integer table that the step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(64))
        self.register_buffer("table", torch.zeros(8, 64))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        self.seen += 1
        self.average.lerp_(h.detach().mean(0), 0.1)
        self.table[2:4] = h.detach()[:2]
        return (h * (1 + self.average)).square().mean()


class WritesInput(nn.Module):
    """Writes to an argument that takes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x + state))
        state.mul_(0.5).add_(h.detach())
        return h.square().mean()


class Views(nn.Module):
    """split, chunk, expand, unbind, slices, transposes, cat and stack."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(64, 96), nn.Parameter(torch.randn(1, 32))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = torch.tanh(self.layer(x)).split(32, dim=1)
        d, e = (a * b).chunk(2, dim=1)
        bias = self.bias.expand(x.shape[0], 32)
        f = torch.cat([d.t().contiguous().t(), e * 2], 1) + bias * c
        g = torch.stack(f.view(2, -1, 32).unbind(0), 1)[:, :, ::2]
        return torch.sin(g.permute(2, 0, 1)).flatten(1).square().mean() + e.select(1, 0).sum()


class Unused(nn.Module):
    """A parameter that the step never reads, and one that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = Outside(), nn.Parameter(torch.ones(100))
        self.only_read = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) * self.only_read.detach()).square().mean()


class PassesThrough(nn.Module):
    """Returns an input and a parameter unchanged beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = Outside(), nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = self.body(x * self.scale)
        return x, h, h.view(2, -1), self.scale


class Number(nn.Module):
    """A python number among the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = MLP(depth=2)

    def forward(self, x: Tensor, y: Tensor, scale: float, steps: int) -> Tensor:
        for _ in range(steps):
            x = x * scale
        return self.body(x, y)


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


class TakesGradient(nn.Module):
    """An input that takes a gradient itself, and no loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Outside(depth=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(F.silu(x) * x)


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
