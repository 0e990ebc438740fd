"""Cuts against what users have: an even number of blocks, and accelerate's device map."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxmem
import fxmem.planning
from fxmem.costs import MeasuredCosts
from fxmem.solvers.partition import (
    Device,
    PartitionProblem,
    PartitionSolution,
    StagePlan,
    check,
    partition,
)
from fxmem.stages.chain import stage_chain
from fxmem.trace import StepTrace, trace_joint

pytestmark = pytest.mark.benchmark
MICROBATCHES = 8


class Shrinking(nn.Module):
    """A convolutional net of one width: its resolution, and with it all else, shrinks."""

    def __init__(self, widths: tuple[int, ...] = (48,) * 8) -> None:
        super().__init__()
        pairs = zip((3, *widths), widths, strict=False)
        self.blocks = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=1 + (i % 2), padding=1) for i, (a, b) in enumerate(pairs)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.gelu(block(x))
        return x.square().mean()


def users_cuts(model: Shrinking) -> dict[str, int]:
    """The first block of the second device, by each way to split."""
    from accelerate import infer_auto_device_map

    whole = sum(p.nbytes for p in model.parameters())
    placed = infer_auto_device_map(model, {0: whole // 2, 1: whole})
    second = next(i for i in range(8) if placed.get(f"blocks.{i}", 1) == 1)
    return {"even": len(model.blocks) // 2, "accelerate": second}


def cut_at(problem: PartitionProblem, item: int) -> PartitionSolution:
    """Two stages, nothing recomputed."""
    count = len(problem.items)
    stages = (
        StagePlan(0, 0, item, (0,) * item, 0.0, 0.0, 0, 0),
        StagePlan(1, item, count, (0,) * (count - item), 0.0, 0.0, 0, 0),
    )
    return PartitionSolution("feasible", stages, 0.0, 0.0, 0.0, "1f1b", MICROBATCHES)


def slowest(problem: PartitionProblem, solution: PartitionSolution) -> float:
    """Seconds of the slowest stage, recomputation included."""
    return max(
        sum(
            item.forward + item.backward + item.options[o].extra
            for item, o in zip(problem.items[s.start : s.stop], s.options, strict=True)
        )
        for s in solution.stage_plans
    )


def test_slowest_stage_and_highest_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both at least 15 % better, by measured costs of operators and the replayed schedule."""
    traces: list[StepTrace] = []

    def keep(joint, forward_outputs):
        traces.append(trace_joint(joint, forward_outputs))
        return traces[-1]

    monkeypatch.setattr(fxmem.planning, "trace_joint", keep)
    model = Shrinking()
    fxmem.optimize(model, None, pool=False)(torch.randn(4, 3, 64, 64))
    trace = traces[-1]
    costs = MeasuredCosts(torch.device("cpu"))(list(trace.operators))
    roomy = (Device(10**12),) * 2
    problem = stage_chain(trace, costs, roomy, pieces=None).problem
    weighted = [i for i, item in enumerate(problem.items) if item.resident]
    assert len(weighted) == len(model.blocks)
    for way, block in users_cuts(model).items():
        theirs = cut_at(problem, weighted[block])
        their_peak = max(check(problem, theirs).peaks)
        devices = (Device(int(their_peak * 0.85)),) * 2
        ours = partition(replace(problem, devices=devices), None, "1f1b", MICROBATCHES)
        assert ours.status == "optimal"
        our_peak = max(s.peak for s in ours.stage_plans)
        faster = slowest(problem, ours) / slowest(problem, theirs)
        print(f"{way}: block {block}, slowest {faster:.3f}, peak {our_peak / their_peak:.3f}")
        assert faster <= 0.85 and our_peak <= 0.85 * their_peak
