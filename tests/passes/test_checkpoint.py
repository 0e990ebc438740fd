"""Checkpoints and policies that the user placed inside the model are honoured."""

from __future__ import annotations

import copy
import random
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import fxmem
from fxmem import Keep, Recompute
from tests.cases import Case
from tests.schedules import lazy_schedule, random_schedule
from tests.steps import differences, run

aten = torch.ops.aten


class Deep(nn.Module):
    """Blocks with dropout; each checkpointed, by a policy or not, or not at all."""

    def __init__(self, how: str, depth: int = 4, drop: float = 0.2) -> None:
        super().__init__()
        self.how, self.drop = how, drop
        self.inner = nn.ModuleList(nn.Linear(32, 128) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(128, 32) for _ in range(depth))

    def block(self, x: Tensor, inner: nn.Module, outer: nn.Module) -> Tensor:
        return x + outer(F.dropout(torch.tanh(inner(x)).sin(), self.drop))

    def forward(self, x: Tensor) -> Tensor:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            if self.how == "plain":
                x = self.block(x, inner, outer)
            elif self.how == "checkpoint":
                x = checkpoint(self.block, x, inner, outer, use_reentrant=False)
            else:
                x = checkpoint(
                    self.block, x, inner, outer, use_reentrant=False, context_fn=CONTEXTS
                )
        return x.square().mean()


def policy(_ctx: object, operator: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    if operator is aten.tanh.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.MUST_RECOMPUTE


CONTEXTS = partial(create_selective_checkpoint_contexts, policy)


def case(how: str) -> Case:
    torch.manual_seed(0)
    return Case(Deep(how), (torch.randn(64, 32),))


def optimized(how: str, budget: object = None) -> fxmem.FittedModule:
    torch._dynamo.reset()
    made = case(how)
    return fxmem.optimize(made.module, budget, made.args, time_limit=0.3)


def test_a_checkpointed_model_keeps_its_savings() -> None:
    plain, saved = optimized("plain").plan, optimized("checkpoint").plan
    # One block's values of 64 x 128 and the inputs of the four, not all of them.
    assert saved.peak_bytes < plain.peak_bytes - 3 * 64 * 128 * 4
    assert saved.overhead == 0.0  # against what the user asked for
    again = {name for name, d in saved.decisions.items() if isinstance(d, Recompute)}
    assert {"tanh", "native_dropout", "addmm"} <= again
    assert any(m.recomputed for m in saved.timeline if m.phase == "backward")


@pytest.mark.parametrize("how", ["checkpoint", "policy"])
def test_same_numbers_as_without_checkpoints(how: str) -> None:
    plain, marked = case("plain"), case(how)
    wanted = run(optimized_of(plain), plain.module, plain)
    assert differences(run(optimized_of(marked), marked.module, marked), wanted) == []


def optimized_of(made: Case, budget: object = None) -> fxmem.FittedModule:
    torch._dynamo.reset()
    return fxmem.optimize(made.module, budget, made.args, time_limit=0.3)


def test_a_policy_decides_value_by_value() -> None:
    plan = optimized("policy").plan
    kept = {name for name, d in plan.decisions.items() if isinstance(d, Keep)}
    again = {name for name, d in plan.decisions.items() if isinstance(d, Recompute)}
    assert {"tanh", "tanh_1", "tanh_2", "tanh_3"} <= kept
    assert "native_dropout" in again and not any(name.startswith("tanh") for name in again)


def test_what_must_be_saved_is_saved_under_a_budget_too() -> None:
    free = optimized("policy").plan
    budget = free.resident_bytes + int(0.9 * (free.peak_bytes - free.resident_bytes))
    try:
        plan = optimized("policy", budget).plan
    except fxmem.InfeasibleBudget as error:
        plan = optimized("policy", error.minimum_bytes).plan
    again = {name for name, d in plan.decisions.items() if isinstance(d, Recompute)}
    assert again and again.isdisjoint({"tanh", "tanh_1", "tanh_2", "tanh_3"})  # tanh_backward may


@pytest.mark.parametrize("how", ["checkpoint", "policy"])
def test_any_schedule_draws_the_same(how: str, schedule_by) -> None:
    plain = case("plain")
    wanted = run(plain.module, plain.module, plain)
    for seed in range(2):
        for choose in (
            lambda problem, seed=seed: random_schedule(problem, random.Random(seed), 0.5),
            lambda problem, seed=seed: lazy_schedule(problem, random.Random(seed)),
        ):
            schedule_by(choose)
            made = case(how)
            fitted = optimized_of(made)
            found = run(fitted, made.module, made)
            assert differences(found, wanted) == []
            ((plan, measured),) = fitted.report().rows
            assert measured == pytest.approx(plan.peak_bytes, rel=0.005)


def test_a_budget_below_the_checkpoints_own_peak_holds() -> None:
    free = optimized("checkpoint").plan
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        optimized("checkpoint", free.resident_bytes + 1)
    made, plain = case("checkpoint"), case("plain")
    fitted = optimized_of(made, caught.value.minimum_bytes)
    found = run(fitted, made.module, made)
    assert fitted.report().rows[0][1] <= caught.value.minimum_bytes < free.peak_bytes
    assert differences(found, run(optimized_of(plain), plain.module, plain)) == []


def test_the_hash_of_a_checkpointed_graph_is_the_same_each_time() -> None:
    assert optimized("checkpoint").plan.graph_hash == optimized("checkpoint").plan.graph_hash
    assert copy.deepcopy(optimized("plain").plan) != optimized("checkpoint").plan
