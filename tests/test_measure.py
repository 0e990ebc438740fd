"""Measured bytes are the allocator's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import fxmem
from fxmem.allocator import peak_of_calls, record
from fxmem.errors import FxmemError
from fxmem.measure import loss_of
from tests.cases import make
from tests.steps import equal

KB = 1000


def tensors(*counts: int) -> list[Tensor]:
    return [torch.empty(c, dtype=torch.uint8) for c in counts]


def test_recording_is_exact() -> None:
    def call() -> None:
        a, b = tensors(3 * KB, 5 * KB)
        del a
        (c,) = tensors(4 * KB)
        del b, c

    found = record(call)
    assert [live for _, live in found.timeline] == [3000, 8000, 5000, 9000, 4000, 0]
    assert found.peak == 9000
    assert found.timeline[0][0] == 0
    moments = [moment for moment, _ in found.timeline]
    assert moments == sorted(moments)
    assert record(lambda: None).peak == 0


def test_peaks_of_calls_are_apart() -> None:
    cpu = torch.device("cpu")
    calls = [lambda n=n: tensors(n * KB) for n in (7, 2, 9)]
    assert peak_of_calls(calls, cpu) == [7000, 2000, 9000]


def test_blocks_from_before_do_not_lower_the_peak() -> None:
    """Those of an earlier recording, freed by the garbage collector, say: their size is known."""
    held: list[Tensor] = []
    record(lambda: held.extend(tensors(9 * KB)))

    def call() -> None:
        held.clear()
        tensors(4 * KB)

    assert record(call).peak == 4000
    cpu = torch.device("cpu")
    assert peak_of_calls([lambda: held.extend(tensors(9 * KB)), call], cpu) == [9000, 4000]


class Known(nn.Module):
    """Its peak can be counted by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1000))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


def test_module() -> None:
    module, x = Known(), torch.ones(1000)
    module.weight.grad = torch.full((1000,), 7.0)
    found = fxmem.measure(module, x)
    assert found.resident_bytes == 8000
    # The product and its sum; then the sum's gradient is an expanded scalar, and the weight's
    # gradient is the only large value.
    assert 8000 + 4000 <= found.peak_bytes <= 8000 + 4000 + 64
    assert found.above_residents == found.peak_bytes - 8000
    assert 0 < found.seconds < 1
    assert torch.equal(module.weight.grad, torch.full((1000,), 7.0))
    assert max(live for _, live in found.timeline) == found.peak_bytes
    assert found.timeline[0][0] == 0.0


def test_callable_counts_all_that_is_held() -> None:
    kept = torch.empty(123_456, dtype=torch.uint8)

    def step(count: Tensor) -> None:
        tensors(int(count))

    before = fxmem.measure(step, torch.tensor(50_000), repeats=1)
    assert before.above_residents == 50_000
    assert before.resident_bytes >= 123_456
    del kept
    after = fxmem.measure(step, torch.tensor(50_000), repeats=1)
    assert before.resident_bytes - after.resident_bytes == 123_456


def test_no_repeats() -> None:
    assert math.isnan(fxmem.measure(lambda: None, repeats=0).seconds)


@pytest.mark.parametrize("name", ["mlp", "outside", "transformer", "convnet", "dict"])
def test_measured_is_what_was_planned(name: str) -> None:
    case = make(name)
    fitted = fxmem.optimize(case.module, 0.97, case.args, time_limit=0.3)
    found = fxmem.measure(fitted, *case.args, repeats=1)
    assert found.resident_bytes == fitted.plan.resident_bytes
    assert found.peak_bytes <= fitted.plan.budget_bytes
    if name in ("mlp", "transformer", "convnet"):  # the loss inside: nothing is left open
        assert found.peak_bytes == pytest.approx(fitted.plan.peak_bytes, rel=0.005)


def test_measuring_keeps_gradients() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, None, case.args)
    fitted(*case.args).backward()
    before = [p.grad.clone() for p in case.module.parameters()]
    fxmem.measure(fitted, *case.args)
    assert all(equal(p.grad, b) for p, b in zip(case.module.parameters(), before, strict=True))


def test_gradients_of_inputs_are_set_aside_too() -> None:
    case = make("input gradient")
    (x,) = [v for v in case.args if v.requires_grad]
    bare = fxmem.measure(case.module, *case.args, repeats=3)
    assert x.grad is None
    loss_of(case.module(*case.args)).backward()
    before, values = x.grad, x.grad.clone()
    again = fxmem.measure(case.module, *case.args, repeats=3)
    assert x.grad is before and equal(x.grad, values)
    assert (again.peak_bytes, again.resident_bytes) == (bare.peak_bytes, bare.resident_bytes)


def test_loss() -> None:
    x = torch.ones(3, requires_grad=True)
    scalar = (x * 2).sum()
    assert loss_of(scalar) is not None and loss_of(scalar).item() == 6
    assert loss_of({"loss": scalar, "y": x}).item() == 9
    assert loss_of([x, None, 4, torch.ones(2)]).item() == 3

    class Output(dict):
        loss = scalar

    assert loss_of(Output(logits=x)) is scalar
    with pytest.raises(FxmemError, match="there is no step"):
        loss_of(torch.ones(3))
