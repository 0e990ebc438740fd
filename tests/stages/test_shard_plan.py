"""A budget for each of several devices of one process: it holds on each, the numbers stay."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fxmem
from fxmem.allocator import device_peaks
from fxmem.errors import BudgetWarning, UnsupportedDevice
from fxmem.measure import loss_of
from fxmem.plan import Keep, Plan, Recompute
from fxmem.stages import shard_cuts
from fxmem.stages.shard_cuts import Cut
from tests.cases import Case, make
from tests.modules import MLP
from tests.steps import differences, run

# The loss outside and gradients of its outputs are estimated, and scalars round up.
SLACK = 64


def budgets(*values: object) -> dict[str, object]:
    return {f"cpu:{i}": value for i, value in enumerate(values)}


def peaks_of(fitted: fxmem.FittedModule, case: Case) -> list[int]:
    """Measured bytes of each device above its residents."""
    args, kwargs = copy.deepcopy((case.args, dict(case.kwargs)))
    for p in fitted.parameters():
        p.grad = None
    return list(
        device_peaks(lambda: loss_of(fitted(*args, **kwargs)).backward(), len(fitted.plan.devices))
    )


def check_memory(fitted: fxmem.FittedModule, case: Case) -> None:
    """What was measured is at most what was predicted, and that within budget."""
    for share, peak in zip(fitted.plan.devices, peaks_of(fitted, case), strict=True):
        assert share.resident_bytes + peak <= share.peak_bytes + SLACK
        if share.budget_bytes is not None:
            assert share.resident_bytes + peak <= share.budget_bytes


def single(case: Case) -> list[dict]:
    module = copy.deepcopy(case.module)
    return run(fxmem.optimize(module, None), module, case)


def cut_at(monkeypatch: pytest.MonkeyPatch, *cuts: int) -> list[int]:
    """Let the step be cut there; how many operators its forward part has."""
    count: list[int] = []

    def only(self: shard_cuts.Chooser, key: str) -> list[Cut]:
        count.append(len(self._chain(None).forward))
        return [Cut(None, cuts, tuple(range(len(cuts) + 1)))]

    monkeypatch.setattr(shard_cuts.Chooser, "_cuts", only)
    return count


def test_two_layers_on_two_devices() -> None:
    case = make("mlp")
    wanted = single(case)
    fitted = fxmem.optimize(case.module, budgets("400KiB", "340KiB"), case.args)
    assert differences(run(fitted, case.module, case), wanted) == []
    first, second = fitted.plan.devices
    assert (first.device, first.budget_bytes) == ("cpu:0", 400 * 1024)
    assert (second.device, second.budget_bytes) == ("cpu:1", 340 * 1024)
    assert fitted.plan.stages == (second.first,)
    check_memory(fitted, case)


def test_measure_tells_of_each_device_what_the_plan_predicts() -> None:
    model, x, y = MLP(64, 2), torch.randn(256, 64), torch.randn(256, 64)
    fitted = fxmem.optimize(model, budgets("400KiB", "340KiB"), (x, y))
    measured = fxmem.measure(fitted, x, y)
    assert measured.device_peak_bytes == {d.device: d.peak_bytes for d in fitted.plan.devices}
    assert fxmem.measure(model, x, y).device_peak_bytes == {}
    # One device's account is not the other's: the whole step holds more than either.
    assert measured.peak_bytes > max(measured.device_peak_bytes.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "convnet", "tuple", "noise", "writes input"])
def test_any_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(name)
    wanted, place, count = single(case), 1, 2
    while place < count:
        torch._dynamo.reset()
        found = cut_at(monkeypatch, place)
        module = copy.deepcopy(case.module)
        fitted = fxmem.optimize(module, budgets(None, None), case.args, time_limit=1)
        assert differences(run(fitted, module, case), wanted) == []
        check_memory(fitted, case)
        (count,) = found
        place += max(1, count // 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "convnet", "dict", "recurrent", "attention"])
def test_three_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(name)
    wanted = single(case)
    for cuts in ((1, 2), (2, 4), (1, 4)):
        torch._dynamo.reset()
        cut_at(monkeypatch, *cuts)
        module = copy.deepcopy(case.module)
        fitted = fxmem.optimize(module, budgets(None, None, None), case.args, time_limit=1)
        assert differences(run(fitted, module, case), wanted) == []
        check_memory(fitted, case)


def test_tied_weights_and_dropout_under_tight_budgets() -> None:
    case = make("transformer")
    wanted = single(case)
    free = fxmem.optimize(copy.deepcopy(case.module), None, case.args).plan
    each = free.resident_bytes + (free.peak_bytes - free.resident_bytes) * 45 // 100
    module = copy.deepcopy(case.module)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        fitted = fxmem.optimize(module, budgets(each, each), case.args, time_limit=2)
        assert differences(run(fitted, module, case), wanted) == []
    assert any(isinstance(d, Keep) for d in fitted.plan.decisions.values())
    check_memory(fitted, case)
    # The tied weight lies on the first device, with its gradient; what lies where adds up.
    assert sum(d.resident_bytes for d in fitted.plan.devices) == fitted.plan.resident_bytes


class Deep(nn.Module):
    """A skip from the first layer to the last, over every cut between."""

    def __init__(self, depth: int = 6, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        first = x = torch.tanh(self.layers[0](x))
        for layer in self.layers[1:]:
            x = torch.sigmoid(torch.tanh(layer(x)) + x)
        return (x * first).square().mean()


def deep() -> Case:
    torch.manual_seed(0)
    return Case(Deep(), (torch.randn(512, 64),))


def test_unequal_budgets_are_met_by_recomputation() -> None:
    case = deep()
    wanted = single(case)
    whole = fxmem.optimize(copy.deepcopy(case.module), None, case.args).plan
    limits = [whole.peak_bytes * share // 100 for share in (55, 30)]
    fitted = fxmem.optimize(case.module, budgets(*limits), case.args, time_limit=2)
    assert differences(run(fitted, case.module, case), wanted) == []
    plan = fitted.plan
    assert any(isinstance(d, Recompute) for d in plan.decisions.values())
    assert [d.budget_bytes for d in plan.devices] == limits
    assert all(d.peak_bytes <= d.budget_bytes for d in plan.devices)
    assert plan.budget_bytes == sum(limits)
    assert plan.seconds == pytest.approx(sum(d.seconds for d in plan.devices))
    assert plan.seconds >= plan.lower_bound_seconds == plan.baseline_seconds
    check_memory(fitted, case)


def test_a_budget_that_cannot_be_met_names_the_device_and_what_it_takes() -> None:
    case = deep()
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        fxmem.optimize(case.module, budgets("1MiB", "1KiB"), case.args, time_limit=2)
    error = caught.value
    assert error.device == "cpu:1" and "on cpu:1" in str(error)
    assert error.budget_bytes == 1024 < error.minimum_bytes
    torch._dynamo.reset()
    met = budgets("1MiB", error.minimum_bytes)
    fitted = fxmem.optimize(case.module, met, case.args, time_limit=2)
    check_memory(fitted, case)


def test_optimizer_state_and_gradients_count_where_the_parameter_lies() -> None:
    case = deep()
    plain = fxmem.plan(case.module, budgets(None, None), case.args).devices
    adam = fxmem.plan(case.module, budgets(None, None), case.args, optimizer="adamw").devices
    parameters = sum(p.numel() * 4 for p in case.module.parameters())
    inputs = case.args[0].numel() * 4
    assert sum(d.resident_bytes for d in plain) == parameters + inputs
    steps = 4 * len(list(case.module.parameters()))  # AdamW counts steps by parameter
    assert sum(d.resident_bytes for d in adam) == 3 * parameters + steps + inputs


def test_one_device_is_a_plain_budget() -> None:
    case = deep()
    wanted = fxmem.plan(case.module, "1MiB", case.args, time_limit=2)
    found = fxmem.plan(case.module, {"cpu:0": "1MiB"}, case.args, time_limit=2)
    assert found.devices == () and found.sequence == wanted.sequence
    assert (found.budget_bytes, found.peak_bytes) == (wanted.budget_bytes, wanted.peak_bytes)


def test_shares_are_of_the_whole_step() -> None:
    case = deep()
    plan = fxmem.plan(case.module, budgets(0.7, 0.6), case.args, time_limit=2)
    limits = [plan.baseline_peak_bytes * share // 10 for share in (7, 6)]
    assert [d.budget_bytes for d in plan.devices] == limits


def test_a_plan_is_saved_with_its_devices_and_its_summary_names_them(tmp_path) -> None:
    case = deep()
    plan = fxmem.plan(case.module, budgets("2MiB", None), case.args, time_limit=2)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.devices == plan.devices and loaded.stages == plan.stages
    assert plan.budget_bytes is None
    lines = plan.summary().splitlines()
    assert any(line.startswith("cpu:0") and "predicted of 2.0 MiB" in line for line in lines)
    assert any(line.startswith("cpu:1") and "predicted of no limit" in line for line in lines)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return nn.functional.dropout(torch.tanh(self.b(x)), 0.2)

        x = checkpoint(inner, self.a(x), use_reentrant=False)
        return self.c(x).square().mean()


def test_what_the_user_checkpoints_is_run_again_in_its_stage(monkeypatch) -> None:
    case = Case(Checkpointed(), (torch.randn(64, 32),))
    wanted = single(case)
    for place in range(1, 5):
        torch._dynamo.reset()
        cut_at(monkeypatch, place)
        module = copy.deepcopy(case.module)
        fitted = fxmem.optimize(module, budgets(None, None), case.args, time_limit=1)
        assert differences(run(fitted, module, case), wanted) == []
        check_memory(fitted, case)


def test_a_step_that_measures_over_a_budget_is_planned_anew(monkeypatch) -> None:
    case, limit, over = deep(), 800 * 1024, 20_000
    free = fxmem.plan(case.module, budgets("1MiB", limit), case.args, time_limit=2).devices[1]
    calls: list[Callable] = []
    real = device_peaks

    def more(call: Callable, devices: int) -> tuple[int, ...]:
        first, second = real(call, devices)
        calls.append(call)
        return first, limit - free.resident_bytes + over if len(calls) == 1 else second

    monkeypatch.setattr("fxmem.runtime.prove.device_peaks", more)
    torch._dynamo.reset()
    with pytest.warns(BudgetWarning, match=f"{over} bytes on cpu:1"):
        fitted = fxmem.optimize(case.module, budgets("1MiB", limit), case.args, time_limit=2)
    assert len(calls) == 2
    assert fitted.plan.devices[1].peak_bytes <= limit - over


def test_what_cannot_be_said_of_several_devices(tmp_path) -> None:
    case = deep()
    with pytest.raises(UnsupportedDevice, match=r"fxmem\.pipeline"):
        fxmem.optimize(case.module, {"cuda:0": "1GiB", "cuda:1": "1GiB"})
    with pytest.raises(fxmem.FxmemError, match="backend='eager'"):
        fxmem.optimize(case.module, budgets("1MiB", "1MiB"), backend="inductor")
    with pytest.raises(fxmem.FxmemError, match="no offload"):
        fxmem.optimize(case.module, budgets("1MiB", "1MiB"), offload=tmp_path)
    with pytest.raises(fxmem.BudgetSyntaxError, match="cpu:1"):
        fxmem.optimize(case.module, budgets("1MiB", "1 parsec"))


def test_more_devices_than_operators() -> None:
    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (self.weight * x).sum()

    with pytest.raises(fxmem.TraceError, match="Give fewer devices"):
        fxmem.plan(Short(), budgets(*[None] * 9), (torch.ones(4),))


def test_a_share_is_of_the_largest_step() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, budgets(0.7, 0.8), case.args, time_limit=1)
    limits = [share.budget_bytes for share in fitted.plan.devices]
    x, y = case.args
    fitted(x[: len(x) // 4], y[: len(y) // 4]).backward()
    assert [share.budget_bytes for share in fitted.plan.devices] == limits
    assert fitted.plan.baseline_peak_bytes < min(limits) / 0.7


def test_learning_judges_each_device() -> None:
    case = make("outside")
    (x,) = case.args
    fitted = fxmem.optimize(case.module, budgets("1MiB", "200KiB"), case.args, time_limit=1)
    before = fitted.plan.devices[1]

    def step(extra: int) -> None:
        case.module.zero_grad()
        made = fitted(x)
        held = torch.empty(extra)  # the caller's own, on the last device; all devices have room
        made.sum().backward()
        del held
        case.module.zero_grad()

    fitted.learn(lambda: step(1))
    assert fitted.plan.devices[1] == before
    with pytest.warns(BudgetWarning, match="on cpu:1"):
        fitted.learn(lambda: step(before.budget_bytes // 4))
