"""`optimize` as users call it."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fxmem
from fxmem.solvers.remat import RematProblem
from tests.cases import make
from tests.modules import MLP, ConvNet, Outside
from tests.steps import equal, state_of


@pytest.mark.parametrize("name", ["transformer", "convnet", "noise", "buffers", "writes input"])
def test_planning_has_no_effects(name: str) -> None:
    case = make(name)
    before = state_of(case.module, case.args)
    kept = nn.Parameter(torch.ones(1))
    fitted = fxmem.optimize(case.module, 1.0, case.args, optimizer="sgd", time_limit=0.3)
    assert all(map(equal, state_of(case.module, case.args), before))
    assert all(p.grad is None for p in case.module.parameters()) and kept.grad is None
    assert fitted.plan is not None
    assert fitted.report().rows[0][1] == fitted.plan.peak_bytes  # proved without a step


def test_planning_leaves_gradients_alone() -> None:
    case = make("mlp")
    case.module(*case.args).backward()
    before = [p.grad.clone() for p in case.module.parameters()]
    fxmem.optimize(case.module, 1.0, case.args)
    assert all(equal(p.grad, b) for p, b in zip(case.module.parameters(), before, strict=True))


def test_lazy_plan_is_the_same_as_the_early_one() -> None:
    case, other = make("mlp"), make("mlp")
    early = fxmem.optimize(case.module, None, case.args)
    lazy = fxmem.optimize(other.module, None)
    assert lazy.plan is None
    assert str(lazy.report()) == "no plan yet"
    lazy(*other.args).backward()
    # Two searches for offsets that end at the same height may differ in offsets.
    left, right = (dataclasses.replace(f.plan, pool=None) for f in (lazy, early))
    assert left == right
    if early.plan.pool is not None:
        assert lazy.plan.pool.arena_bytes == early.plan.pool.arena_bytes


def test_examples_by_keyword() -> None:
    case = make("keywords")
    examples = {"x": case.args[0], **case.kwargs}
    fitted = fxmem.optimize(case.module, None, examples)
    assert fitted.plan is not None
    fitted(**examples).backward()
    assert len(fitted.report().rows) == 1
    # An argument that was left out makes another graph.
    fitted.zero_grad()
    fitted(**examples, shift=torch.zeros(48, 64))
    assert len(fitted.report().rows) == 2


def test_what_comes_back_is_torchs_own_optimised_module() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, None, case.args)
    assert isinstance(fitted, torch._dynamo.eval_frame.OptimizedModule)
    assert isinstance(fitted, fxmem.FittedModule)
    assert list(fitted.parameters()) == list(case.module.parameters())
    assert fitted.layers is case.module.layers
    assert "plan" not in dict(case.module.__dict__)


def test_new_shapes_get_plans_of_their_own() -> None:
    module = Outside()
    eager = copy.deepcopy(module)
    fitted = fxmem.optimize(module, None, (torch.randn(16, 64),))
    for rows in (16, 48, 16, 24, 48):
        fitted.zero_grad()
        eager.zero_grad()
        x = torch.randn(rows, 64)
        fitted(x).sum().backward()
        eager(x).sum().backward()
        assert all(
            equal(a.grad, b.grad)
            for a, b in zip(module.parameters(), eager.parameters(), strict=True)
        )
        # The input is resident, and so tells which plan is in use.
        weights = sum(p.numel() * 4 for p in module.parameters())
        assert fitted.plan.resident_bytes == weights + rows * 64 * 4
    assert len(fitted.report().rows) == 3


def test_more_shapes_than_dynamo_allows_by_default() -> None:
    fitted = fxmem.optimize(MLP(depth=1), None)
    for rows in range(2, 14):
        fitted.zero_grad()
        fitted(torch.randn(rows, 64), torch.randn(rows, 64)).backward()
    assert len(fitted.report().rows) == 12


def test_many_modules_of_one_class() -> None:
    pair = torch.randn(8, 64), torch.randn(8, 64)
    for _ in range(12):
        module = MLP(depth=1)
        wanted = module(*pair)
        fitted = fxmem.optimize(module, None, pair)
        assert equal(fitted(*pair), wanted)


@pytest.mark.parametrize("name", ["writes input", "transformer", "convnet"])
def test_the_whole_peak_is_enough(name: str) -> None:
    """A budget of just what the step takes needs no room for replays that it does not make."""
    case = make(name)
    plan = fxmem.optimize(case.module, 1.0, case.args, time_limit=0.3).plan
    assert plan.status == "optimal" and plan.overhead == 0.0
    assert plan.peak_bytes <= plan.budget_bytes == plan.baseline_peak_bytes


def test_smaller_budgets_hold_and_cost_no_less() -> None:
    case = make("no dropout")
    base = fxmem.optimize(case.module, None, case.args).plan
    seconds = []
    for share in (1.0, 0.85, 0.7):
        torch._dynamo.reset()
        plan = fxmem.optimize(make("no dropout").module, share, case.args, time_limit=0.5).plan
        assert plan.budget_bytes == int(share * base.peak_bytes + 1e-6)
        assert plan.peak_bytes <= plan.budget_bytes
        assert plan.lower_bound_seconds <= plan.seconds
        assert plan.baseline_peak_bytes == base.peak_bytes
        seconds.append(plan.seconds / plan.baseline_seconds)
    assert seconds == sorted(seconds)
    assert seconds[0] == 1.0


def test_same_seed_same_plan() -> None:
    case = make("frozen")
    plans = []
    for _ in range(2):
        torch._dynamo.reset()
        plans.append(fxmem.optimize(case.module, 0.85, case.args, time_limit=1.0).plan)
    assert plans[0].graph_hash == plans[1].graph_hash
    assert plans[0].baseline_seconds == plans[1].baseline_seconds


def test_optimizer_state_is_charged() -> None:
    case = make("mlp")
    parameters = sum(p.numel() * 4 for p in case.module.parameters())
    plain = fxmem.optimize(case.module, None, case.args).plan
    by_name = fxmem.optimize(case.module, None, case.args, optimizer="adamw").plan
    count = len(list(case.module.parameters()))
    assert by_name.resident_bytes - plain.resident_bytes == 2 * parameters + 4 * count
    own = torch.optim.SGD(case.module.parameters(), lr=0.1, momentum=0.9)
    by_itself = fxmem.optimize(case.module, None, case.args, optimizer=own).plan
    assert by_itself.resident_bytes - plain.resident_bytes == parameters
    assert own.state == {}


def test_without_pool_nothing_is_overwritten() -> None:
    case = make("no dropout")
    pooled = fxmem.optimize(case.module, None, case.args)
    plain = fxmem.optimize(make("no dropout").module, None, case.args, pool=False)
    assert pooled.plan.peak_bytes < plain.plan.peak_bytes
    (step,) = plain._session.steps
    for graph in (step.graphs.forward.graph, step.graphs.backward.graph):
        assert not any(
            n.target._schema.is_mutable for n in graph.nodes if hasattr(n.target, "_schema")
        )


def test_progress_is_told() -> None:
    case = make("mlp")
    stages: list[str] = []
    fxmem.optimize(
        case.module, 0.9, case.args, time_limit=0.3, progress=lambda stage, _: stages.append(stage)
    )
    order = [s for s in dict.fromkeys(stages) if s != "measure"]
    assert order[:2] == ["trace", "costs"]
    assert order[-1] == "planned"


def test_own_cost_table() -> None:
    from fxmem.costs import Cost

    def costs(nodes: list[Any]) -> dict[Any, Cost]:
        return {n: Cost(1.0, 0) for n in nodes}

    case = make("attention")
    plan = fxmem.optimize(case.module, None, case.args, costs=costs).plan
    assert plan.seconds == len(plan.sequence) - 1  # the turn takes no time


def test_report_stands_side_by_side() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, 0.9, case.args, time_limit=0.3)
    text = str(fitted.report())
    assert fitted.plan.summary() in text
    assert "measured" in text and "predicted +0.00% from it" in text


def test_a_plan_that_measures_over_budget_is_made_anew() -> None:
    """The workspace that a cost table forgets is learnt from the proof, before any step."""
    from fxmem.costs import Cost

    def costs(nodes: list[Any]) -> dict[Any, Cost]:
        return {n: Cost(1e-6, 0) for n in nodes}

    case = make("convnet")
    before = state_of(case.module)
    exact = fxmem.optimize(copy.deepcopy(case.module), None, case.args).plan.peak_bytes
    budget = exact - 8000
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = fxmem.optimize(case.module, budget, case.args, costs=costs, time_limit=0.5)
    told = [str(w.message) for w in caught if "fxmem" in str(w.message)]
    rows = fitted.report().rows
    assert len(rows) == len(told) + 1
    assert len(told) >= 1 and "planned anew" in told[0]
    assert rows[0][1] > budget >= rows[-1][1]
    assert all(map(equal, state_of(case.module), before))


def test_a_step_outside_of_what_was_proved_is_learnt_from() -> None:
    """What the user's own code holds between forward and backward counts once it was seen."""
    module = Outside()
    x = torch.randn(48, 64)
    base = fxmem.optimize(copy.deepcopy(module), None, (x,)).plan.peak_bytes
    fitted = fxmem.optimize(module, base, (x,), time_limit=0.3)

    def step() -> None:
        fitted.zero_grad()
        out = fitted(x)
        held = [out * 2 for _ in range(8)]
        sum(h.sum() for h in held).backward()

    with pytest.warns(fxmem.errors.BudgetWarning, match="planned anew"):
        peak = fitted.learn(step)
    assert peak > base
    assert fitted.report().rows[0][1] == peak
    # The next call plans anew, or says before it runs that the budget is out of reach.
    try:
        step()
    except fxmem.InfeasibleBudget as error:
        assert error.minimum_bytes > base
    else:
        assert len(fitted.report().rows) == 2


def test_the_turn_is_named_in_the_sequence(schedule_by) -> None:
    seen: list[RematProblem] = []

    def choose(problem: RematProblem) -> list[int]:
        seen.append(problem)
        return list(range(problem.count))

    schedule_by(choose)
    case = make("convnet")
    plan = fxmem.optimize(case.module, None, case.args).plan
    assert plan.sequence.index("turn") == seen[0].turn
    assert plan.sequence == seen[0].names


def test_two_modules_in_turn() -> None:
    """Two modules in turn, each with its own plan."""
    one, two = ConvNet(), make("mlp")
    images = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    first = fxmem.optimize(one, None, images)
    second = fxmem.optimize(two.module, None, two.args)
    assert first.plan.graph_hash != second.plan.graph_hash
    for _ in range(2):
        first(*images).backward()
        second(*two.args).backward()
    assert first.plan.resident_bytes != second.plan.resident_bytes
