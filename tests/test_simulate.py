"""The timeline, operator by operator."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.compile_utils import fx_graph_cse
from torch.fx.experimental.proxy_tensor import make_fx

import fxmem
from fxmem.costs import Cost
from fxmem.lower import lower
from fxmem.plan import CATEGORIES
from fxmem.planning import costs_of, rewrite
from fxmem.simulate import Simulation, simulate
from fxmem.trace import trace_joint
from tests.cases import make
from tests.schedules import lazy_schedule

N = 1000  # bytes of each value below: 250 floats


def step(primals: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.exp(primals)
    out = torch.ops.aten.cat.default([h])
    return out, torch.ops.aten.cat.default([tangents]) * torch.ops.aten.flip.default(h, [0])


def simulation(order: list[str | None], overwrite: bool = False, resident: int = 0) -> Simulation:
    joint = make_fx(step, tracing_mode="fake")(torch.randn(250), torch.randn(250))
    trace = trace_joint(joint, 1)
    nodes = {n.name: n for n in trace.joint.graph.nodes}
    costs = {n: Cost(0.001, 100 * (n.name == "flip")) for n in trace.operators}
    lower(trace, costs, resident)
    graphs = rewrite(trace, [nodes[n] if n else None for n in order], overwrite)
    return simulate(graphs, costs_of(graphs, costs), resident, 1)


def rows(found: Simulation) -> list[tuple[str, dict[str, int]]]:
    return [
        (m.name, {c: b for c, b in zip(CATEGORIES, m.held, strict=True) if b})
        for m in found.timeline
    ]


def test_everything_kept() -> None:
    found = simulation(["exp", "cat", None, "cat_1", "flip", "mul"], resident=7)
    assert rows(found) == [
        ("exp", {"resident": 7, "kept": N}),
        ("cat", {"resident": 7, "kept": N, "temporary": N}),
        ("cat_1", {"resident": 7, "kept": N, "outputs": N, "temporary": 2 * N}),
        ("flip", {"resident": 7, "kept": N, "outputs": N, "temporary": 3 * N, "workspace": 100}),
        ("mul", {"resident": 7, "outputs": N, "temporary": 3 * N, "gradients": N}),
    ]
    assert found.peak_bytes == 5 * N + 100 + 7
    assert [m.phase for m in found.timeline] == ["forward"] * 2 + ["backward"] * 3
    assert [m.start for m in found.timeline] == pytest.approx([0, 0.001, 0.002, 0.003, 0.004])
    assert not any(m.recomputed for m in found.timeline)


def test_recomputed() -> None:
    found = simulation(["exp", "cat", None, "cat_1", "exp", "flip", "mul"])
    assert [(m.name, m.recomputed) for m in found.timeline] == [
        ("exp", False),
        ("cat", False),
        ("cat_1", False),
        ("exp", True),
        ("flip", False),
        ("mul", False),
    ]
    assert rows(found)[0] == ("exp", {"temporary": N})
    assert rows(found)[2] == ("cat_1", {"outputs": N, "temporary": 2 * N})
    assert rows(found)[3] == ("exp", {"outputs": N, "temporary": 2 * N, "recomputed": N})


def test_overwritten() -> None:
    found = simulation(["exp", "cat", None, "cat_1", "flip", "mul"], overwrite=True)
    # The product lies where one of its factors was.
    assert rows(found)[-1] == ("mul", {"outputs": N, "temporary": 2 * N, "gradients": N}) or (
        sum(found.timeline[-1].held) == 4 * N
    )


@pytest.mark.parametrize("name", ["transformer", "convnet", "mlp", "recurrent"])
def test_timeline_of_a_plan(name: str) -> None:
    case = make(name)
    plan = fxmem.optimize(case.module, 0.97, case.args, time_limit=0.3).plan
    peak = max(m.live_bytes for m in plan.timeline)
    if plan.pool is None:
        assert peak == plan.peak_bytes
    else:  # the arena may be a little larger than what lives in it
        assert peak <= plan.peak_bytes <= plan.budget_bytes
    assert {m.held[0] for m in plan.timeline} == {plan.resident_bytes}
    assert min(min(m.held) for m in plan.timeline) >= 0
    phases = [m.phase for m in plan.timeline]
    assert phases == sorted(phases, key=["forward", "backward"].index)
    assert {"forward", "backward"} == set(phases)
    gradients = [m.held[1] for m in plan.timeline]
    assert gradients[0] == 0
    for before, after in zip(plan.timeline, plan.timeline[1:], strict=False):
        assert after.start == pytest.approx(before.start + before.seconds)


class Twice(nn.Module):
    """One value under two names, of which backward reads both, where the norms are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.norm(x), self.norm(x)
        loss = first.square().mean() + second.tanh().tanh().square().mean()
        return loss, second


def test_a_block_that_is_saved_twice_counts_once(
    schedule_by, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Upstream's pass merges the calls and leaves their items apart.
    monkeypatch.setattr("fxmem.passes.simplify.merge_common", fx_graph_cse)
    twice = 0
    for seed in range(4):
        torch._dynamo.reset()
        schedule_by(lambda problem, seed=seed: lazy_schedule(problem, random.Random(seed)))
        fitted = fxmem.optimize(Twice(), None, (torch.randn(16, 32),), pool=False)
        ((plan, measured),) = fitted.report().rows
        assert plan.peak_bytes == pytest.approx(measured, abs=16)
        twice += {"getitem", "getitem_3"} <= set(fitted._session.current.graphs.saved)
    assert twice
