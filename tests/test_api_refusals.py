"""What `optimize` refuses, and what it says then."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import fxmem
from fxmem.solvers.remat import SOLVERS
from tests.cases import make
from tests.modules import Outside
from tests.steps import equal, run, state_of


def test_infeasible_before_any_training() -> None:
    case = make("transformer")
    before = state_of(case.module, case.args)
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        fxmem.optimize(case.module, "20 kB", case.args, time_limit=0.5)
    error = caught.value
    assert error.budget_bytes == 20_000
    assert error.minimum_bytes > 20_000
    names = [name for name, _ in error.blockers]
    assert "parameters, inputs and optimizer state" in names
    sizes = [size for _, size in error.blockers]
    assert sizes == sorted(sizes, reverse=True) and min(sizes) > 0
    assert all(map(equal, state_of(case.module, case.args), before))


@pytest.mark.parametrize("name", ["mlp", "no dropout", "convnet", "attention", "dict"])
def test_the_minimum_is_feasible(name: str) -> None:
    case = make(name)
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        fxmem.optimize(case.module, 1, case.args, time_limit=0.3)
    least = caught.value.minimum_bytes
    wanted = run(fxmem.optimize(copy.deepcopy(case.module), None), case.module, case, 1)
    fitted = fxmem.optimize(case.module, least, case.args, time_limit=0.3)
    assert fitted.plan.peak_bytes <= least
    found = run(fitted, case.module, case, 1)
    assert equal(found[0]["output 0"], wanted[0]["output 0"])
    assert fitted.report().rows[0][1] <= least


def test_infeasible_at_the_first_call_too() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, 1000, time_limit=0.3)
    with pytest.raises(fxmem.InfeasibleBudget, match="least feasible"):
        fitted(*case.args)
    assert all(p.grad is None for p in case.module.parameters())


@pytest.mark.parametrize(
    ("budget", "error"),
    [
        ("12 quarks", fxmem.BudgetSyntaxError),
        (0, fxmem.BudgetSyntaxError),
        (-5, fxmem.BudgetSyntaxError),
        (1.5, fxmem.BudgetSyntaxError),
        (float("nan"), fxmem.BudgetSyntaxError),
        (True, fxmem.BudgetSyntaxError),
        ([1], fxmem.BudgetSyntaxError),
        ({"cuda:0": "1GiB"}, fxmem.FxmemError),
    ],
)
def test_malformed_budget(budget: Any, error: type[Exception]) -> None:
    case = make("mlp")
    with pytest.raises(error):
        fxmem.optimize(case.module, budget, case.args)


def test_options_that_do_not_exist() -> None:
    case = make("mlp")
    with pytest.raises(fxmem.FxmemError, match="costs='guessed' is not known"):
        fxmem.optimize(case.module, None, case.args, costs="guessed")
    with pytest.raises(fxmem.FxmemError, match="offload"):
        fxmem.optimize(case.module, None, case.args, offload="host")
    with pytest.raises(fxmem.FxmemError, match="optimizer 'lion' is not known"):
        fxmem.optimize(case.module, 0.9, case.args, optimizer="lion")
    with pytest.raises((fxmem.FxmemError, ValueError), match="magic"):
        fxmem.optimize(case.module, 0.9, case.args, solver="magic")
    with pytest.raises(fxmem.FxmemError, match="turbo"):
        fxmem.optimize(case.module, 0.9, case.args, backend="turbo")


class Branches(nn.Module):
    """What it does depends on a value that is not known ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        if h.sum() > 0:
            h = h * 2
        return h.sum()


def test_graph_break_says_where() -> None:
    with pytest.raises(fxmem.TraceError) as caught:
        fxmem.optimize(Branches(), None, (torch.randn(2, 4),))
    message = str(caught.value)
    assert "tests/test_api_refusals.py" in message
    assert "if h.sum() > 0:" in message
    assert "Move what it names out of the forward" in message


class Selects(nn.Module):
    """The size of a result depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[x.sum(1) > 0].sum()


def test_size_that_depends_on_values_says_where() -> None:
    with pytest.raises(fxmem.TraceError, match=r"self\.layer\(x\)\[x\.sum\(1\) > 0\]"):
        fxmem.optimize(Selects(), None, (torch.randn(2, 4),))


def test_a_users_own_mistake_is_not_hidden() -> None:
    with pytest.raises(fxmem.TraceError, match=r"size=\(2, 5\)"):
        fxmem.optimize(Outside(), None, (torch.randn(2, 5),))


def test_nothing_to_train() -> None:
    module = Outside().requires_grad_(False)
    fitted = fxmem.optimize(module, None, (torch.randn(4, 64),))
    assert fitted.plan is None
    x = torch.randn(4, 64)
    assert equal(fitted(x), module(x))


def test_several_devices_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))
            self.register_buffer("b", torch.ones(3, device="meta"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.a * x).sum() + (self.b * self.b).sum().to("cpu")

    with pytest.raises(fxmem.FxmemError):
        fxmem.optimize(Two(), None, (torch.ones(3),))


@pytest.mark.parametrize("time_limit", [0.0, pytest.param(1e-6, marks=pytest.mark.slow), 0.01])
@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_a_solver_without_time_gives_a_plan_or_says_none_was_found(
    solver: str, time_limit: float
) -> None:
    case = make("attention")
    eager = copy.deepcopy(case.module)
    try:
        fitted = fxmem.optimize(
            case.module, 0.85, case.args, solver=solver, time_limit=time_limit, cache=False
        )
    except fxmem.InfeasibleBudget as error:
        assert error.minimum_bytes is None or error.minimum_bytes > error.budget_bytes
        fitted = fxmem.optimize(case.module, None, case.args)
    else:
        assert fitted.report().rows[-1][1] <= fitted.plan.budget_bytes
    fitted(*case.args).backward()
    eager(*case.args).backward()
    for new, old in zip(case.module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad)
