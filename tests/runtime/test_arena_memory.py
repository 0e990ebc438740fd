"""What an arena holds between steps, and beside what the caller keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxmem
from fxmem.allocator import record
from fxmem.residents import count_residents
from fxmem.runtime import arena as arenas
from fxmem.runtime import native
from fxmem.solvers.remat import RematProblem
from tests.cases import make
from tests.runtime.arena_cases import Net, fitted_net, seeded
from tests.steps import equal

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason="no C++ compiler for the arena"),
    pytest.mark.usefixtures("poison"),
]


def test_others_get_idle_memory_back_under_a_budget() -> None:
    _, fitted, arena = fitted_net(0.95)
    fitted.zero_grad()
    seeded(fitted, 1).backward()
    fitted.zero_grad()
    held = arena.committed_bytes
    assert held == fitted.plan.pool.arena_bytes
    others = torch.empty(fitted.plan.budget_bytes, dtype=torch.uint8)
    assert arena.committed_bytes == 0
    del others
    seeded(fitted, 1).backward()
    assert arena.committed_bytes == held


class Recomputed(nn.Module):
    """Made anew from its input in backward, it saves nothing in the arena."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x.transpose(0, 1)[..., :8].square().mean()


def all_again(problem: RematProblem) -> list[int]:
    assert problem.turn is not None
    again = [v for v in range(problem.turn) if v not in problem.once]
    return [*range(problem.turn + 1), *again, *range(problem.turn + 1, problem.count)]


@pytest.mark.parametrize("kept", [1, 3])
def test_gradients_of_earlier_steps_that_are_kept_take_no_part(kept: int, schedule_by) -> None:
    schedule_by(all_again)
    x = torch.randn(16, 32).requires_grad_()
    fitted = fxmem.optimize(Recomputed(), "10KiB", (x,))
    arena = fitted._session.current.arena
    assert arena is not None and not arena._saves
    history = []
    for _ in range(kept):
        x.grad = fitted.scale.grad = None
        fitted(x).backward()
        history.append(x.grad)
    x.grad = fitted.scale.grad = None
    residents = count_residents(fitted, (x,)).total
    served, refused = arena.served, arena.refused
    peak = record(lambda: fitted(x).backward()).peak
    assert residents + peak <= fitted.plan.peak_bytes
    assert arena.served > served and arena.refused == refused
    assert all(equal(each, x.grad) for each in history)


def test_without_a_budget_idle_memory_stays() -> None:
    _, fitted, arena = fitted_net()
    seeded(fitted, 1).backward()
    held = arena.committed_bytes
    torch.empty(10 * held, dtype=torch.uint8)
    assert arena.committed_bytes == held
    fitted.zero_grad()
    arenas.trim_all()
    assert arena.committed_bytes == 0


def test_a_plan_gives_way_a_little_so_that_its_arena_fits() -> None:
    """Planned anew with bytes to spare; its bound is still that of the whole budget."""
    case = make("transformer")
    free = fxmem.optimize(case.module, None, case.args).plan
    for share in (0.9, 0.8, 0.7):
        torch._dynamo.reset()
        case = make("transformer")
        try:
            fitted = fxmem.optimize(case.module, share, case.args, time_limit=0.5)
        except fxmem.InfeasibleBudget:
            continue
        plan = fitted.plan
        assert len(fitted.report().rows) == 1
        assert plan.peak_bytes <= plan.budget_bytes
        assert free.seconds * 0.99 <= plan.lower_bound_seconds <= plan.seconds


def test_a_whole_iteration_keeps_to_the_budget() -> None:
    """What the optimizer asks for comes out of the idle arena."""
    torch.manual_seed(0)
    module, x = Net(), torch.randint(0, 10, (256, 8))
    optimizer = torch.optim.AdamW(module.parameters())
    fitted = fxmem.optimize(module, 0.9, (x,), optimizer=optimizer, time_limit=0.5)
    assert fitted.plan.pool is not None

    def iteration() -> None:
        optimizer.zero_grad()
        fitted(x).backward()
        optimizer.step()

    for _ in range(3):
        iteration()
    optimizer.zero_grad()
    resident = count_residents(module, (x,), optimizer).total
    assert resident + record(iteration).peak <= fitted.plan.budget_bytes
