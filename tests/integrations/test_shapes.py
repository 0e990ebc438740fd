"""Sizes that change, and sizes that the user says will."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxmem
from fxmem.allocator import record
from fxmem.errors import BudgetWarning
from fxmem.integrations import shapes
from fxmem.residents import count_residents

ROWS = (32, 20, 32)
MARKS = {
    "no mark": lambda tensor, dim: None,
    "mark_dynamic": torch._dynamo.mark_dynamic,
    "mark_unbacked": torch._dynamo.decorators.mark_unbacked,
}


class Rows(nn.Module):
    """Sizes take part in what is computed."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((16, 64), (64, 64), (64, 64))
        self.layers = nn.ModuleList(nn.Linear(*width) for width in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x)).view(2, x.shape[0] // 2, 64).reshape(-1, 64)
        return x.sum() / x.shape[0] + x.new_ones(x.shape[0]).sum()


def steps_equal_eager(
    call: Callable[..., Any], module: nn.Module, mark: Callable[..., Any], budget: int | None
) -> None:
    """Loss and gradients of a step for each number of rows, and its peak."""
    eager = copy.deepcopy(module)
    for rows in ROWS:
        x = torch.randn(rows, 16)
        mark(x, 0)
        module.zero_grad()
        eager.zero_grad()
        loss, wanted = call(x), eager(x)
        loss.backward()
        wanted.backward()
        torch.testing.assert_close(loss, wanted)
        for p, q in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        del loss, wanted
        module.zero_grad()
        if budget is not None:
            residents = count_residents(module, (x,)).total
            assert residents + record(lambda x=x: call(x).backward()).peak <= budget


@pytest.mark.parametrize("name", ["mark_dynamic", "mark_unbacked"])
def test_fitted_modules_have_a_plan_for_each_set_of_sizes(name: str) -> None:
    module = Rows()
    x = torch.randn(ROWS[0], 16)
    MARKS[name](x, 0)
    marks = dict(x.__dict__)
    fitted = fxmem.optimize(module, 0.9, (x,), time_limit=0.3)
    assert x.__dict__ == marks
    steps_equal_eager(fitted, module, MARKS[name], fitted.plan.budget_bytes)
    assert len(fitted.report().rows) == len(set(ROWS))


@pytest.mark.parametrize(
    ("name", "dynamic"), [("no mark", None), ("no mark", True), ("mark_dynamic", None)]
)
def test_compiled_callables_have_one_too(name: str, dynamic: bool | None) -> None:
    module = Rows()
    x = torch.randn(ROWS[0], 16)
    budget = fxmem.plan(module, 0.9, (x,), time_limit=0.3).budget_bytes
    call = torch.compile(
        module, backend="fxmem", dynamic=dynamic, options={"budget": budget, "time_limit": 0.3}
    )
    steps_equal_eager(call, module, MARKS[name], budget)


def test_a_share_is_of_the_largest_step() -> None:
    module = Rows()
    fitted = fxmem.optimize(module, 0.9, (torch.randn(32, 16),), time_limit=0.3)
    budget = fitted.plan.budget_bytes
    assert budget == int(0.9 * fitted.plan.baseline_peak_bytes)
    fitted(torch.randn(2, 16)).backward()
    module.zero_grad()
    # Alone it would not have been feasible: nearly all of it are parameters and gradients.
    assert fitted.plan.budget_bytes == budget > fitted.plan.baseline_peak_bytes * 0.9
    with pytest.raises(fxmem.InfeasibleBudget):
        fxmem.optimize(module, 0.9, (torch.randn(2, 16),), time_limit=0.3)
    fitted(torch.randn(64, 16)).backward()
    assert fitted.plan.budget_bytes == int(0.9 * fitted.plan.baseline_peak_bytes) > budget


def test_too_many_sizes_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_SIZES", 2)
    made: list[int] = []

    def make(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        made.append(inputs[0].shape[0])
        return graph

    graph = torch.fx.Graph()
    size, x = graph.placeholder("size"), graph.placeholder("x")
    graph.output(graph.call_method("mul", (x, size)))
    call = shapes.BySizes(torch.fx.GraphModule({}, graph), make)
    with pytest.warns(BudgetWarning, match="more than 2 sets of input sizes") as told:
        for rows in (1, 2, 1, 3, 2, 1):
            assert torch.equal(call(rows, torch.ones(rows)), rows * torch.ones(rows))
    assert made == [1, 2, 3, 1] and len(told) == 1
