"""A small net, and what the tests of its arena do with it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import fxmem
from fxmem.runtime import arena as arenas


class Net(nn.Module):
    """A few layers with something to keep, and dropout."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.table = nn.Embedding(10, width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.2, self.training)
        return x.square().mean()


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, 10, (16, 8), generator=torch.Generator().manual_seed(seed))


def fitted_net(budget: object = None) -> tuple[nn.Module, nn.Module, arenas.StepArena]:
    torch.manual_seed(0)
    eager = Net()
    fitted = fxmem.optimize(copy.deepcopy(eager), budget, (tokens(),), time_limit=0.5)
    arena = fitted._session.current.arena
    assert arena is not None
    return eager, fitted, arena


def gradients(call: nn.Module, loss: Tensor, **kwargs: bool) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(call.parameters()), **kwargs))


def seeded(call: nn.Module, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return call(tokens(seed))
