"""Moving values against recomputation alone, on the operators of real models.

By measured costs and the judge's replay; nothing is moved for real here.
"""

from __future__ import annotations

import pytest

import fxmem
import fxmem.planning
from fxmem.lower import Lowered
from fxmem.solvers import remat
from fxmem.solvers.transfer import Tier, TransferProblem, check, solve
from tests.benchmarks.models import build

pytestmark = pytest.mark.benchmark
SECONDS = 20.0


class Lowering(Exception):
    """Enough: the problem is at hand."""


def lowered(name: str, monkeypatch: pytest.MonkeyPatch) -> remat.RematProblem:
    """The problem of one model's step."""
    problems: list[remat.RematProblem] = []

    def take(found: Lowered, *_: object) -> None:
        problems.append(found.problem)
        raise Lowering

    monkeypatch.setattr(fxmem.planning, "find_schedule", take)
    module, inputs = build(name)
    with pytest.raises(Exception, match="Lowering"):
        fxmem.plan(module, 0.5, inputs, cache=False)
    return problems[0]


def with_disk(problem: remat.RematProblem, bytes_a_second: float) -> TransferProblem:
    """May be moved: what forward makes and backward reads."""
    turn = problem.turn
    assert turn is not None
    late = {s for v in range(turn + 1, problem.count) for s in problem.reads[v]}
    movable = frozenset(s for s in late if 0 <= problem.writer[s] < turn and problem.size[s])
    speed = round(bytes_a_second)
    return TransferProblem(problem, (Tier("disk", speed, speed, 50_000, 50_000),), movable)


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_against_recomputation_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1 GB/s faster at every budget, and down to a budget no larger."""
    problem = lowered(name, monkeypatch)
    disk = with_disk(problem, 1e9)
    plain = max(remat.replay(problem, range(problem.count)))
    still = remat.least_peak(problem, SECONDS)
    least = solve(disk, 0, time_limit=SECONDS)
    mib = 2**20
    print(
        f"\n{name}: peak {plain / mib:.1f} MiB, working set {problem.floor / mib:.1f}; least peak "
        f"recomputing {still.peak / mib:.1f}, moving {least.peak / mib:.1f}"
    )
    assert least.peak <= still.peak
    for share in (0.6, 0.4, 0.2, 0.0):
        budget = round(problem.floor * 1.02 + share * (plain - problem.floor * 1.02))
        alone = remat.solve(problem, budget, time_limit=SECONDS, gap=2e-3)
        answer = solve(disk, budget, time_limit=SECONDS)
        replay = check(disk, answer.actions, budget)
        base = problem.base_time
        fits = alone.status in ("optimal", "feasible")
        print(
            f"  {budget / mib:6.1f} MiB: recomputing "
            + (f"{alone.total_time / base:.3f}" if fits else "does not fit")
            + f", moving too {answer.makespan / base:.3f} (bound {answer.lower_bound / base:.3f}, "
            f"waits {replay.stall / base:.3f}, {len(answer.moved)} moved) in {answer.seconds:.0f} s"
        )
        assert answer.status in ("optimal", "feasible")
        assert not fits or answer.makespan <= alone.total_time
