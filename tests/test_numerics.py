"""No plan changes a number: loss, outputs, gradients, buffers, inputs, generator."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxmem
from fxmem.solvers.remat import RematProblem
from tests.cases import CASES, Case, make
from tests.modules import ConvNet, Transformer
from tests.schedules import lazy_schedule, random_schedule
from tests.steps import differences, equal, run

SCHEDULES: dict[str, Callable[[RematProblem], list[int]]] = {
    "traced": lambda problem: list(range(problem.count)),
    "lazy": lambda problem: lazy_schedule(problem, random.Random(1)),
    "random": lambda problem: random_schedule(problem, random.Random(2), 0.3),
    "wild": lambda problem: random_schedule(problem, random.Random(3), 1.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "kinds", [("traced", "wild"), pytest.param(("lazy", "random"), marks=pytest.mark.slow)]
)
def test_any_schedule_trains_as_eager(name: str, kinds: tuple[str, ...], schedule_by) -> None:
    eager = make(name)
    wanted = run(eager.module, eager.module, eager)
    for kind in kinds:
        torch._dynamo.reset()
        schedule_by(SCHEDULES[kind])
        case = make(name)
        fitted = fxmem.optimize(case.module, None)
        assert differences(run(fitted, case.module, case), wanted) == [], kind
        ((plan, measured),) = fitted.report().rows
        assert measured == pytest.approx(plan.peak_bytes, rel=0.005), kind


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("share", [pytest.param(0.9, marks=pytest.mark.slow), 0.75])
def test_a_budget_changes_no_bit_and_holds(name: str, share: float) -> None:
    free = make(name)
    wanted = run(fxmem.optimize(free.module, None), free.module, free)
    case = make(name)
    try:
        fitted = fxmem.optimize(case.module, share, time_limit=0.3)
        found = run(fitted, case.module, case)
    except fxmem.InfeasibleBudget as error:
        # Some of these modules have next to nothing to recompute.
        torch._dynamo.reset()
        case = make(name)
        fitted = fxmem.optimize(case.module, round(1.1 * error.minimum_bytes), time_limit=0.3)
        found = run(fitted, case.module, case)
    assert differences(found, wanted) == []
    for plan, measured in fitted.report().rows:
        assert plan.peak_bytes <= plan.budget_bytes
        assert measured <= plan.budget_bytes
        assert measured == pytest.approx(plan.peak_bytes, rel=0.005)


def test_running_statistics_after_five_steps() -> None:
    case = make("convnet")
    eager = copy.deepcopy(case.module)
    fitted = fxmem.optimize(case.module, 0.85, time_limit=0.3)
    assert differences(run(fitted, case.module, case, 5), run(eager, eager, case, 5)) == []
    assert case.module.norm1.num_batches_tracked == 5


@pytest.mark.parametrize("kind", ["mlp", "transformer", "convnet"])
def test_trains_with_an_optimizer(kind: str) -> None:
    case = make(kind)
    eager = copy.deepcopy(case.module)
    fitted = fxmem.optimize(case.module, 0.95, case.args, optimizer="adamw", time_limit=0.3)
    for module, call in ((eager, eager), (case.module, fitted)):
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(call.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            call(*case.args).backward()
            optimizer.step()
        assert all(p.grad is not None for p in module.parameters())
    left, right = eager.state_dict(), case.module.state_dict()
    assert left.keys() == right.keys()
    assert [n for n in left if not equal(left[n], right[n])] == []


def test_state_dict_is_the_modules_own() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, None, case.args)
    other = make("mlp", seed=1).module
    fitted.load_state_dict({f"_orig_mod.{k}": v for k, v in other.state_dict().items()})
    assert torch.equal(fitted(*case.args), other(*case.args))


def test_retain_graph_twice_gives_the_same_gradients(schedule_by) -> None:
    for name in ("transformer", "convnet", "views", "noise"):
        for choose in (SCHEDULES["lazy"], SCHEDULES["wild"]):
            torch._dynamo.reset()
            schedule_by(choose)
            case = make(name)
            fitted = fxmem.optimize(case.module, None)
            loss = fitted(*case.args)
            parameters = [p for p in case.module.parameters() if p.requires_grad]
            once = torch.autograd.grad(loss, parameters, retain_graph=True)
            twice = torch.autograd.grad(loss, parameters)
            assert all(map(equal, once, twice)), name


def test_a_graph_may_be_retained_after_others_were_not() -> None:
    case = make("mlp")
    eager = copy.deepcopy(case.module)
    fitted = fxmem.optimize(case.module, None)
    for order in ((False, True), (True, False)):
        results = []
        for module, call in ((eager, eager), (case.module, fitted)):
            parameters, found = list(module.parameters()), []
            for retain in order:
                loss = call(*case.args)
                for again in (retain, False)[: 1 + retain]:
                    found += torch.autograd.grad(loss, parameters, retain_graph=again)
            results.append(found)
        assert all(map(equal, *results))


def test_two_forwards_before_either_backward(schedule_by) -> None:
    schedule_by(SCHEDULES["wild"])
    case, other = make("transformer"), make("transformer", seed=1)
    eager = copy.deepcopy(case.module)
    fitted = fxmem.optimize(case.module, None)
    gradients = []
    for module, call in ((eager, eager), (case.module, fitted)):
        torch.manual_seed(5)
        first, second = call(*case.args), call(*other.args)
        parameters = list(module.parameters())
        # The later one first: nothing may lean on the order of forwards.
        gradients.append(torch.autograd.grad(second, parameters))
        gradients[-1] += torch.autograd.grad(first, parameters)
        gradients[-1] += (torch.get_rng_state(),)
    assert all(map(equal, *gradients))


@pytest.mark.parametrize("name", ["transformer", "convnet", "noise", "buffers"])
def test_forward_without_backward(name: str, schedule_by) -> None:
    """Draws and buffer updates belong to the forward part, wherever they could be put."""
    case = make(name)
    eager = copy.deepcopy(case.module)
    schedule_by(lambda problem: random_schedule(problem, random.Random(4), 0.5))
    fitted = fxmem.optimize(case.module, None)
    results = []
    for module, call in ((eager, eager), (case.module, fitted)):
        torch.manual_seed(5)
        losses = [call(*case.args).detach() for _ in range(3)]
        results.append([*losses, *module.buffers(), torch.get_rng_state()])
    assert all(map(equal, *results))
    loss = fitted(*case.args)
    loss.backward()
    assert any(p.grad is not None for p in case.module.parameters())


class LateDraw(nn.Module):
    """Draws noise that only the backward part reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * torch.rand(64)).sum()


def test_draws_of_the_forward_part_stay_there(schedule_by) -> None:
    """The first draw of each is before the turn, even where only backward reads it."""
    seen: list[RematProblem] = []

    def choose(problem: RematProblem) -> list[int]:
        seen.append(problem)
        return list(range(problem.count))

    schedule_by(choose)
    module = LateDraw()
    fxmem.optimize(module, None)(torch.randn(8, 64))
    (problem,) = seen
    assert problem.turn in problem.ordered
    draws = [v for v in problem.ordered if v != problem.turn]
    assert [problem.names[v] for v in draws] == ["rand"]
    assert draws[0] < problem.turn


@pytest.mark.parametrize("name", ["transformer", "convnet"])
def test_no_grad_and_eval(name: str) -> None:
    case = make(name)
    eager = copy.deepcopy(case.module)
    fitted = fxmem.optimize(case.module, 0.9, case.args, time_limit=0.3)
    plan = fitted.plan
    with torch.no_grad():
        torch.manual_seed(2)
        wanted = eager(*case.args)
        torch.manual_seed(2)
        found = fitted(*case.args)
    assert equal(found, wanted) and not found.requires_grad
    eager.eval()
    fitted.eval()
    assert not case.module.training
    with torch.no_grad():
        assert equal(fitted(*case.args), eager(*case.args))
    # A training step in eval mode is another graph, with a plan of its own.
    fitted(*case.args).backward()
    assert all(p.grad is not None for p in case.module.parameters())
    fitted.zero_grad()
    eager.train()
    fitted.train()
    torch.manual_seed(2)
    wanted = eager(*case.args)
    torch.manual_seed(2)
    assert equal(fitted(*case.args), wanted)
    assert fitted.plan.sequence == plan.sequence
    assert fitted.plan.peak_bytes == plan.peak_bytes
    state, other = eager.state_dict(), case.module.state_dict()
    assert [n for n in state if not equal(state[n], other[n])] == []


def test_accumulated_gradients() -> None:
    case = make("mlp")
    eager = copy.deepcopy(case.module)
    fitted = fxmem.optimize(case.module, None, case.args)
    for call in (eager, fitted):
        for _ in range(3):
            call(*case.args).backward()
    for left, right in zip(eager.parameters(), case.module.parameters(), strict=True):
        assert equal(left.grad, right.grad)
    first, second = (plan for plan, _ in fitted.report().rows)
    gradients = sum(p.numel() * 4 for p in case.module.parameters())
    assert second.resident_bytes - first.resident_bytes == gradients


def test_outputs_share_memory_as_in_eager() -> None:
    case = make("tuple")
    _, (side, (hidden, detached, nothing, number)) = fxmem.optimize(case.module, None)(*case.args)
    assert (nothing, number) == (None, 3)
    assert detached.data_ptr() == hidden.data_ptr() != side.data_ptr()
    assert not detached.requires_grad


@pytest.mark.slow
def test_many_schedules(schedule_by) -> None:
    """A wider net under many different random schedules, all with the same bits."""
    torch.manual_seed(0)
    case = Case(Transformer(width=48), (torch.randint(0, 50, (3, 17)),))
    eager = copy.deepcopy(case.module)
    wanted = run(eager, eager, case, 1)
    for seed in range(6):
        torch._dynamo.reset()
        schedule_by(lambda p, seed=seed: random_schedule(p, random.Random(seed), 0.8))
        module = copy.deepcopy(case.module)
        assert differences(run(fxmem.optimize(module, None), module, case, 1), wanted) == [], seed


def test_channels_last(schedule_by) -> None:
    schedule_by(SCHEDULES["wild"])
    torch.manual_seed(0)
    module = ConvNet().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    case = Case(module, (x, torch.tensor([1, 2])))
    eager = copy.deepcopy(module)
    wanted = run(eager, eager, case)
    assert differences(run(fxmem.optimize(module, None), module, case), wanted) == []


class Scalars(nn.Module):
    """Small enough that an operator's few bytes for a number make its peak."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * (x + 1).square().mean()


@pytest.mark.parametrize("early", [True, False])
def test_the_first_call_takes_what_the_others_take(early: bool) -> None:
    """Found by fuzzing: torch checks custom operators on the first call, in bytes of its own."""
    module, x = Scalars(), torch.randn(8, 64)
    fitted = fxmem.optimize(module, None, (x,) if early else None)
    fitted(x).backward()
    ((plan, proved),) = fitted.report().rows
    assert proved == plan.peak_bytes
