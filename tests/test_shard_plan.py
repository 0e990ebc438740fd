"""A budget for each of several devices of one process: it holds on each, the numbers stay."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import fxmem
from tests.modules import MLP


def gradients(call: nn.Module, module: nn.Module, *args: Tensor) -> list[Tensor | None]:
    for p in module.parameters():
        p.grad = None
    call(*args).backward()
    return [p.grad for p in module.parameters()]


def test_two_layers_on_two_devices() -> None:
    model, x, y = MLP(64, 2), torch.randn(256, 64), torch.randn(256, 64)
    wanted = gradients(copy.deepcopy(model), model, x, y)
    wanted = gradients(model, model, x, y)
    for p in model.parameters():
        p.grad = None
    fitted = fxmem.optimize(model, {"cpu:0": "400KiB", "cpu:1": "340KiB"}, (x, y), time_limit=2)
    assert all(map(torch.equal, gradients(fitted, model, x, y), wanted))
    first, second = fitted.plan.devices
    assert (first.device, second.device) == ("cpu:0", "cpu:1")
    assert (first.budget_bytes, second.budget_bytes) == (400 * 1024, 340 * 1024)
    measured = fxmem.measure(fitted, x, y).device_peak_bytes
    assert measured == {d.device: d.peak_bytes for d in fitted.plan.devices}
    assert all(d.peak_bytes <= d.budget_bytes for d in fitted.plan.devices)
