"""Small modules, one for each peculiar thing that a traced step may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

from tests.modules import MLP, Outside


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


class TakesGradient(nn.Module):
    """An input that takes a gradient itself, and no loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Outside(depth=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(F.silu(x) * x)
