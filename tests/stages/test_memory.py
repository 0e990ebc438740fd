"""Predicted bytes of a rank, against the allocator: to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fxmem.allocator import record
from fxmem.budget import Budget
from fxmem.costs import MeasuredCosts
from fxmem.passes.stages import cut
from fxmem.planning import Options, plan_step
from fxmem.runtime.pipelining import Action
from fxmem.runtime.stage import StageRun
from fxmem.stages.memory import StageParts, rank_peak
from fxmem.stages.names import Names
from fxmem.stages.trace import capture
from fxmem.trace import trace_joint
from tests.pipelines import tiny_gpt, tiny_unet
from tests.stage_cases import costs as given_costs

ORDERS = {
    "gpipe": "F0 F1 F2 B2 B1 B0",
    "1f1b": "F0 F1 B0 F2 B1 B2",
    "zero-bubble": "F0 F1 I0 I1 W0 F2 I2 W1 W2",
}


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

        def step(each=each, run=run) -> None:
            losses = []
            with torch.no_grad():
                for kind, m in each:
                    if kind == "F":
                        losses.append(run.forward(m, {}, batch)[1])
                    elif kind == "W":
                        run.backward_weights(m)
                    else:
                        (run.backward if kind == "B" else run.backward_inputs)(m, {})

        order: list[Action] = [(kind, 0, m) for kind, m in each]
        operators = trace_joint(stage.joint, stage.forward_outputs).operators
        parts = StageParts(stage, graphs, costs(list(operators)), splits)
        measured = record(step).peak
        predicted = rank_peak(order, {0: parts}, {})
        assert measured <= predicted <= 1.001 * measured


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
