"""``torch.compile(backend="fxmem")``: one graph or several, one budget."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import fxmem
from fxmem.allocator import record
from fxmem.integrations.step import StepBudget
from fxmem.residents import count_residents
from tests.cases import make
from tests.steps import differences, run

ROWS, WIDTH = 256, 64
ROW = ROWS * WIDTH * 4


class Broken(nn.Module):
    """Three graphs, each of which can do with less than it would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def part(self, x: Tensor, layer: nn.Module) -> Tensor:
        x = layer(x)
        for _ in range(4):
            x = torch.sin(torch.tanh(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        # Written out: Dynamo runs a loop with a break in it without any graph.
        x = self.part(x, self.layers[0])
        torch._dynamo.graph_break()
        x = self.part(x, self.layers[1])
        torch._dynamo.graph_break()
        return self.part(x, self.layers[2]).sum()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[StepBudget]:
    """Every step that the backend plans."""
    found: list[StepBudget] = []

    class Kept(StepBudget):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr("fxmem.integrations.dynamo.StepBudget", Kept)
    return found


def compiled(module: nn.Module, **options: Any) -> Callable[..., Any]:
    return torch.compile(module, backend="fxmem", options={"time_limit": 0.3, **options})


def peak(call: Callable[..., Any], module: nn.Module, x: Tensor) -> int:
    """Peak bytes of one step, residents included, from no gradients."""
    module.zero_grad()
    gc.collect()
    residents = count_residents(module, (x,)).total
    return residents + record(lambda: call(x).backward()).peak


def test_one_graph_by_name() -> None:
    case, free = make("transformer"), make("transformer")
    wanted = run(fxmem.optimize(free.module, None), free.module, free)
    module = compiled(case.module, budget=None)
    assert isinstance(module, torch._dynamo.eval_frame.OptimizedModule)
    assert differences(run(module, case.module, case), wanted) == []


def test_options_are_checked() -> None:
    case = make("mlp")
    for wrong, word in (({"bugdet": 1}, "bugdet"), ({"budget": "12 quarks"}, "quarks")):
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed, match=word):
            torch.compile(case.module, backend="fxmem", options=wrong)(*case.args)


def test_several_graphs_without_a_budget() -> None:
    module, x = Broken(), torch.randn(ROWS, WIDTH)
    eager = copy.deepcopy(module)
    call = compiled(module, budget=None)
    for _ in range(2):
        eager(x).backward()
        call(x).backward()
    for new, old in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad)


@pytest.mark.parametrize("share", [pytest.param(0.9, marks=pytest.mark.slow), 0.6])
def test_the_budget_is_for_the_step_and_not_for_each_graph(share: float, steps: list) -> None:
    module, x = Broken(), torch.randn(ROWS, WIDTH)
    eager = copy.deepcopy(module)
    free = compiled(module, budget=None)
    for _ in range(2):
        whole = peak(free, module, x)
    torch._dynamo.reset()
    residents = count_residents(module, (x,)).total
    budget = residents + int(share * (whole - residents))
    call = compiled(module, budget=budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxmem.errors.BudgetWarning)
        for _ in range(6):
            last = peak(call, module, x)
    assert [len(step.parts) for step in steps] == [3, 3]
    assert last <= budget < whole
    module.zero_grad()
    eager(x).backward()
    call(x).backward()
    for new, old in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad)


def test_many_steps_hold_no_more_than_one_and_are_planned_once(steps: list) -> None:
    module, x = Broken(), torch.randn(ROWS, WIDTH)
    call = compiled(module, budget=None)
    seen = []
    for _ in range(4):
        module.zero_grad()
        call(x).backward()
        gc.collect()
        (step,) = steps
        rows = [t for t in gc.get_objects() if type(t) is Tensor and t.numel() == x.numel()]
        seen.append(([part._grows for part in step.parts], [t is x for t in rows]))
    assert seen[0][1] == [True]
    assert all(each == seen[0] for each in seen)
    assert [len(part.session.steps) for part in step.parts] == [1, 1, 1]


def test_a_step_that_cannot_fit_is_refused() -> None:
    module, x = Broken(), torch.randn(ROWS, WIDTH)
    residents = count_residents(module, (x,)).total
    # Each graph by itself would fit.
    call = compiled(module, budget=residents + 4 * ROW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fxmem.errors.BudgetWarning)
        with pytest.raises((fxmem.InfeasibleBudget, BackendCompilerFailed), match="no plan fits"):
            for _ in range(6):
                module.zero_grad()
                call(x).backward()


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).sin()


class Experts(nn.Module):
    """Tokens go to the expert that their values choose: a break at each route."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(Expert() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        chosen = weights.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten().tolist()
            if not rows:
                continue
            index = torch.tensor(rows)
            taken = expert(x[index]) * weights[index, number, None]
            out = out.index_add(0, index, taken)
        return out.square().mean()


def test_experts_chosen_by_values(steps: list[StepBudget]) -> None:
    torch.manual_seed(3)
    module = Experts()
    eager = copy.deepcopy(module)
    call = torch.compile(
        module, backend="fxmem", dynamic=False, options={"budget": "1MiB", "time_limit": 0.3}
    )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, eager)]
    for seed in range(3):
        x = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(seed))
        for step, optimizer in zip((call, eager), optimizers, strict=True):
            optimizer.zero_grad()
            step(x).backward()
            optimizer.step()
    for new, old in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(new, old)
    (step,) = steps
    assert len(step.parts) >= 3
