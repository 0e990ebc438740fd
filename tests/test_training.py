"""Training as people do it: each habit, against eager, within the budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxmem
from tests.modules import MLP, ConvNet, Transformer
from tests.steps import equal


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(0, 50, (4, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def budget(tokens: Tensor) -> int:
    return budget_of(Transformer(drop=0.0), (tokens,))


@pytest.fixture
def pair(
    tokens: Tensor, budget: int
) -> tuple[nn.Module, nn.Module, fxmem.FittedModule, tuple[Tensor, ...]]:
    """Eager module, its twin, the twin optimised below its peak, and the arguments."""
    return pair_of(Transformer(drop=0.0), (tokens,), budget)


def budget_of(module: nn.Module, args: tuple[Any, ...], share: float = 0.85) -> int:
    """Bytes for a step below its peak, with gradients from before beside it."""
    base = fxmem.optimize(copy.deepcopy(module), None, args).plan
    gradients = sum(tensor.nbytes for tensor in module.parameters())
    return base.resident_bytes + int(share * (base.peak_bytes - base.resident_bytes)) + gradients


def pair_of(
    module: nn.Module, args: tuple[Any, ...], budget: int | None = None, share: float = 0.85
) -> tuple[nn.Module, nn.Module, fxmem.FittedModule, tuple[Any, ...]]:
    twin = copy.deepcopy(module)
    budget = budget_of(module, args, share) if budget is None else budget
    fitted = fxmem.optimize(twin, budget, args, time_limit=0.3)
    return module, twin, fitted, args


def same_after(
    train: Callable[[nn.Module, nn.Module], None], eager: nn.Module, twin: nn.Module, fitted: Any
) -> None:
    """Train both by ``train(module, call)``; weights and buffers end close to eager's."""
    torch.manual_seed(1)
    train(eager, eager)
    torch.manual_seed(1)
    train(twin, fitted)
    wanted, found = eager.state_dict(), twin.state_dict()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5, msg=name)
    for plan, measured in fitted.report().rows:
        assert measured is None or measured <= plan.budget_bytes


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "loop": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_optimizers(name: str, set_to_none: bool, pair) -> None:
    eager, twin, fitted, args = pair

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = OPTIMIZERS[name](call.parameters())
        for _ in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            call(*args).backward()
            optimizer.step()

    same_after(train, eager, twin, fitted)
    assert len(fitted.report().rows) == (1 if set_to_none else 2)


def test_accumulation_and_clipping(pair) -> None:
    eager, twin, fitted, _ = pair
    batches = torch.randint(0, 50, (6, 4, 24))

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for number, batch in enumerate(batches):
            (call(batch) / 3).backward()
            if number % 3 == 2:
                nn.utils.clip_grad_norm_(call.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    same_after(train, eager, twin, fitted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaler_and_autocast(dtype: torch.dtype) -> None:
    module = MLP()
    args = torch.randn(32, 64), torch.randn(32, 64)
    twin, eager = copy.deepcopy(module), module
    with torch.autocast("cpu", dtype):
        fitted = fxmem.optimize(twin, 1.0, args, time_limit=0.3)

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = call(*args)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(call.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    same_after(train, eager, twin, fitted)
    assert len(fitted.report().rows) == 1


def test_average_of_weights_by_copy(pair) -> None:
    eager, twin, fitted, args = pair
    averages: list[nn.Module] = []

    def train(module: nn.Module, call: nn.Module) -> None:
        averaged = torch.optim.swa_utils.AveragedModel(
            call, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(*args).backward()
            optimizer.step()
            averaged.update_parameters(call)
        averages.append(averaged)

    same_after(train, eager, twin, fitted)
    wanted, found = (list(a.module.parameters()) for a in averages)
    for new, old, live in zip(found, wanted, twin.parameters(), strict=True):
        torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5)
        assert new is not live and not equal(new, live)
    with torch.no_grad():
        torch.testing.assert_close(averages[1](*args), averages[0](*args), rtol=1e-4, atol=1e-5)


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank update beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.base(x) + self.up(self.down(F.dropout(x, 0.1, self.training))))


def test_frozen_base_with_adapters() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(Adapter(64, 4) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x).square().mean()

    eager, twin, fitted, args = pair_of(Model(), (torch.randn(64, 64),))

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = torch.optim.AdamW([p for p in call.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            call(*args).backward()
            optimizer.step()

    same_after(train, eager, twin, fitted)
    assert all(p.grad is None for p in twin.parameters() if not p.requires_grad)


def test_gradient_hooks(pair) -> None:
    eager, twin, fitted, args = pair
    seen: list[list[str]] = []

    def train(module: nn.Module, call: nn.Module) -> None:
        names: list[str] = []
        seen.append(names)
        for name, parameter in module.named_parameters():
            parameter.register_hook(lambda g: g * 0.5)
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: names.append(name))
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = call(*args)
            loss.register_hook(lambda g: g * 2)
            loss.backward()
            optimizer.step()

    same_after(train, eager, twin, fitted)
    assert sorted(seen[0]) == sorted(seen[1]) and seen[1]


def test_optimizer_in_backward(pair) -> None:
    """Each gradient is used and freed as soon as it is there."""
    eager, twin, fitted, args = pair

    def train(module: nn.Module, call: nn.Module) -> None:
        def step(parameter: Tensor) -> None:
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad
            parameter.grad = None

        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            call(*args).backward()

    same_after(train, eager, twin, fitted)


class Straight(torch.autograd.Function):
    """Rounds, and passes the gradient of a clipped identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)


def test_custom_autograd_function() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(Straight.apply(torch.tanh(self.inner(x)) * 3)).square().mean()

    eager, twin, fitted, args = pair_of(Model(), (torch.randn(64, 64),))

    def train(module: nn.Module, call: nn.Module) -> None:
        for _ in range(2):
            call(*args).backward()
        with torch.no_grad():
            for parameter in call.parameters():
                parameter -= 0.1 * parameter.grad

    same_after(train, eager, twin, fitted)
    assert twin.inner.weight.grad.any()


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive", "dropout"])
def test_attention(mask: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.register_buffer("allowed", torch.ones(16, 16, dtype=torch.bool).tril())

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                split = self.qkv(x).chunk(3, dim=-1)
                q, k, v = (t.view(2, 16, 2, 16).transpose(1, 2) for t in split)
                options = {
                    "none": {},
                    "causal": {"is_causal": True},
                    "boolean": {"attn_mask": self.allowed},
                    "additive": {"attn_mask": torch.zeros(16, 16).masked_fill(~self.allowed, -9)},
                    "dropout": {"dropout_p": 0.2},
                }[mask]
                mixed = F.scaled_dot_product_attention(q, k, v, **options)
                x = x + self.out(mixed.transpose(1, 2).reshape(2, 16, 32))
            return x.square().mean()

    eager, twin, fitted, args = pair_of(Model(), (torch.randn(2, 16, 32),), share=0.9)

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            call(*args).backward()
            optimizer.step()

    same_after(train, eager, twin, fitted)


def test_retained_graph_and_gradients_of_outputs(pair) -> None:
    _eager, twin, fitted, args = pair
    loss = fitted(*args)
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in twin.parameters()]
    loss.backward()
    assert all(equal(p.grad, 2 * g) for p, g in zip(twin.parameters(), once, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_last_batch_that_is_smaller(pair) -> None:
    eager, twin, fitted, _ = pair
    batches = [torch.randint(0, 50, (rows, 24)) for rows in (4, 4, 1, 4, 1)]

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for batch in batches:
            optimizer.zero_grad()
            call(batch).backward()
            optimizer.step()

    same_after(train, eager, twin, fitted)
    assert len(fitted.report().rows) == 2


def test_running_statistics_move_once_a_step() -> None:
    args = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    eager, twin, fitted, args = pair_of(ConvNet(), args, share=0.9)

    def train(module: nn.Module, call: nn.Module) -> None:
        optimizer = torch.optim.SGD(call.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            call(*args).backward()
            optimizer.step()

    same_after(train, eager, twin, fitted)
    assert twin.norm1.num_batches_tracked == 3
