"""Real models: the budget holds, the prediction is right, the numbers do not change."""

from __future__ import annotations

import copy

import pytest
import torch

import fxmem
from fxmem.allocator import record
from fxmem.residents import count_residents

from .models import build

pytestmark = pytest.mark.slow

MODELS = ("gpt2", "gpt2-dropout", "resnet50", "unet")
SHARES = (0.9, 0.7, 0.5, 0.4, 0.3)
SECONDS = 10.0


def eager_peak(module, inputs) -> int:
    """Peak of an eager step, residents included."""
    module(*inputs).backward()
    module.zero_grad()
    peak = record(lambda: module(*inputs).backward()).peak
    module.zero_grad()
    return count_residents(module, inputs).total + peak


def one_step(module, inputs, seed=1):
    """Loss, gradients and buffers after one step from a seed."""
    module.zero_grad()
    torch.manual_seed(seed)
    loss = module(*inputs)
    loss.backward()
    drawn = torch.rand(())
    return (
        loss.detach(),
        {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None},
        {n: b.clone() for n, b in module.named_buffers()},
        drawn,
    )


def assert_same(left, right) -> None:
    """Bit for bit."""
    assert torch.equal(left[0], right[0])
    assert left[1].keys() == right[1].keys()
    for name in left[1]:
        assert torch.equal(left[1][name], right[1][name]), name
    for name in left[2]:
        assert torch.equal(left[2][name], right[2][name]), name
    assert torch.equal(left[3], right[3])


@pytest.mark.parametrize("name", MODELS)
def test_every_budget_holds_and_changes_nothing(name):
    module, inputs = build(name)
    peak = eager_peak(copy.deepcopy(module), inputs)
    free = copy.deepcopy(module)
    unlimited = one_step(fxmem.optimize(free, None, inputs), inputs)
    eager = one_step(copy.deepcopy(module), inputs)
    assert torch.equal(unlimited[0], eager[0])
    assert torch.equal(unlimited[3], eager[3])
    for gradient, same in zip(unlimited[1].values(), eager[1].values(), strict=True):
        torch.testing.assert_close(gradient, same, rtol=1e-4, atol=1e-6)
    with pytest.raises(fxmem.InfeasibleBudget) as error:
        fxmem.optimize(copy.deepcopy(module), 1000, inputs, time_limit=SECONDS)
    least = error.value.minimum_bytes
    feasible = 0
    for budget in [int(peak * share) for share in SHARES] + [least]:
        if budget < least:
            print(f"{name}: {budget / peak:.2f} of eager is below the least, {least / peak:.3f}")
            continue
        twin = copy.deepcopy(module)
        fitted = fxmem.optimize(twin, budget, inputs, time_limit=SECONDS)
        assert_same(one_step(fitted, inputs), unlimited)
        twin.zero_grad()
        measured = fxmem.measure(fitted, *inputs, repeats=1).peak_bytes
        plan = fitted.plan
        print(
            f"{name} at {budget / peak:.3f} of eager ({budget / 2**20:.1f} MiB): measured "
            f"{measured / 2**20:.2f} MiB, predicted {plan.peak_bytes / measured - 1:+.3%}, "
            f"time {plan.overhead:+.1%}, gap {plan.gap:.2%}"
        )
        assert measured <= budget
        assert abs(plan.peak_bytes / measured - 1) <= 0.03
        feasible += 1
        torch._dynamo.reset()
    assert feasible >= 2


def test_running_statistics_after_five_steps():
    module, inputs = build("resnet50")
    twin = copy.deepcopy(module)
    peak = eager_peak(copy.deepcopy(module), inputs)
    fitted = fxmem.optimize(twin, int(0.7 * peak), inputs, time_limit=SECONDS)
    for _ in range(5):
        module.zero_grad()
        twin.zero_grad()
        module(*inputs).backward()
        fitted(*inputs).backward()
    for (name, buffer), other in zip(module.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(buffer, other), name
