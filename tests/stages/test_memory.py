"""Predicted bytes of a rank, against the allocator: to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fxmem.allocator import record
from fxmem.budget import Budget
from fxmem.costs import MeasuredCosts
from fxmem.passes.stages import cut
from fxmem.plan import Recompute
from fxmem.planning import Options, plan_step
from fxmem.runtime.pipelining import Action
from fxmem.runtime.stage import StageRun
from fxmem.runtime.transfer import held_bytes
from fxmem.stages.fit import build
from fxmem.stages.memory import StageParts, rank_peak
from fxmem.stages.names import Names
from fxmem.stages.times import stage_seconds
from fxmem.stages.trace import capture
from fxmem.trace import trace_joint
from tests.pipelines import layers, tiny_gpt, tiny_unet
from tests.stage_cases import costs as given_costs

ORDERS = {
    "gpipe": "F0 F1 F2 B2 B1 B0",
    "1f1b": "F0 F1 B0 F2 B1 B2",
    "zero-bubble": "F0 F1 I0 I1 W0 F2 I2 W1 W2",
}


def run_all(run: StageRun, each: Sequence[tuple[str, int]], batch: Sequence[Tensor]) -> None:
    """Actions of the only stage; every microbatch is the same."""
    losses = []
    with torch.no_grad():
        for kind, m in each:
            if kind == "F":
                losses.append(run.forward(m, {}, batch)[1])
            elif kind == "W":
                run.backward_weights(m)
            else:
                (run.backward if kind == "B" else run.backward_inputs)(m, {})


@pytest.mark.parametrize("share", [None, 0.7])
@pytest.mark.parametrize("make", [tiny_gpt, tiny_unet])
def test_one_rank_to_the_byte(make, share: float | None) -> None:
    model, x, target, loss_fn = make()
    batch = x[:4].clone(), target[:4].clone()
    stage = Names(model).renamed(cut(capture(model, batch, loss_fn), ())[0])
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    costs = MeasuredCosts(torch.device("cpu"))
    for name, text in ORDERS.items():
        each = [(word[0], int(word[1])) for word in text.split()]
        splits = name == "zero-bubble"
        options = Options(Budget.parse(share), costs, time_limit=1, reuse=not splits, pool=False)
        graphs = plan_step(stage.joint, stage.forward_outputs, 0, options).graphs
        run = StageRun(stage, graphs, parameters, buffers, 1 / 3, splits)

        order: list[Action] = [(kind, 0, m) for kind, m in each]
        operators = trace_joint(stage.joint, stage.forward_outputs).operators
        parts = StageParts(stage, graphs, costs(list(operators)), splits)
        measured = record(lambda each=each, run=run: run_all(run, each, batch)).peak
        predicted = rank_peak(order, {0: parts}, {})
        assert measured <= predicted <= 1.001 * measured


@pytest.mark.parametrize("name", ORDERS)
def test_one_rank_that_moves_values_to_the_byte(name: str, tmp_path: Path) -> None:
    """Its graphs are made again from the plan alone, as on every rank but the one that planned."""
    model, x, target, loss_fn = layers()
    batch = x[:128].clone(), target[:128].clone()
    stage = Names(model).renamed(cut(capture(model, batch, loss_fn), ())[0])
    parameters = dict(model.named_parameters())
    each = [(word[0], int(word[1])) for word in ORDERS[name].split()]
    splits = name == "zero-bubble"
    options = Options(
        Budget.parse(0.9),
        given_costs,
        time_limit=2,
        reuse=not splits,
        pool=False,
        kept_bytes=70_000,
        offload=str(tmp_path),
    )
    plan = plan_step(stage.joint, stage.forward_outputs, 0, options).plan
    assert plan.transfers and Recompute() not in plan.decisions.values()
    graphs = build(stage, plan, options.reuse)
    found = {}
    for way in ("as it is", "moving"):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        if way == "as it is":
            free = replace(options, budget=Budget(), kept_bytes=None)
            run = StageRun(
                stage,
                plan_step(stage.joint, stage.forward_outputs, 0, free).graphs,
                parameters,
                {},
                1 / 3,
                splits,
            )
        else:
            run = StageRun(stage, graphs, parameters, {}, 1 / 3, splits)
        peak = record(lambda run=run: run_all(run, each, batch)).peak
        found[way] = [p.grad for p in parameters.values()]
    assert all(map(torch.equal, found["as it is"], found["moving"]))
    costs = given_costs(list(trace_joint(stage.joint, stage.forward_outputs).operators))
    parts = StageParts(stage, graphs, costs, splits)
    order: list[Action] = [(kind, 0, m) for kind, m in each]
    assert peak == rank_peak(order, {0: parts}, {})
    assert parts.kept <= 70_000 and held_bytes(str(tmp_path)) == 0
    stalls = sum(t.stall + t.toll for t in plan.transfers)
    compute = sum(cost.seconds for cost in costs.values())
    seconds = stage_seconds(stage, graphs, costs, splits)
    assert seconds["F"] + seconds["B"] == pytest.approx(compute + stalls)


@pytest.mark.parametrize("share", [0.3])
@pytest.mark.parametrize("make", [tiny_gpt, tiny_unet])
def test_no_more_is_kept_than_was_allowed(make, share: float) -> None:
    model, x, target, loss_fn = make()
    stage = cut(capture(model, (x[:4].clone(), target[:4].clone()), loss_fn), ())[0]
    options = Options(Budget.parse(None), given_costs, time_limit=1, pool=False)

    def kept(options: Options) -> tuple[int, int]:
        step = plan_step(stage.joint, stage.forward_outputs, 0, options)
        costs = given_costs(list(trace_joint(stage.joint, stage.forward_outputs).operators))
        return StageParts(stage, step.graphs, costs, splits=False).kept, step.plan.peak_bytes

    free, peak = kept(options)
    most = int(share * free)
    # The budget is that of the whole step: it does not bind, and still less is kept.
    less, its_peak = kept(replace(options, budget=Budget.parse(peak), kept_bytes=most))
    assert less <= most < free and its_peak <= peak
