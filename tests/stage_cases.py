"""Plans of pipelines in one process, by costs that do not vary."""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx as fx

from fxmem.budget import Budget
from fxmem.costs import Cost
from fxmem.planning import Options
from fxmem.stages.names import Names
from fxmem.stages.pipeline_plan import PipelinePlan
from fxmem.stages.pipeline_run import split_batch
from fxmem.stages.plan import plan_pipeline
from fxmem.stages.trace import capture
from fxmem.storages import tensor_bytes
from tests.pipelines import MICROBATCHES, Case

PRODUCTS = ("mm", "bmm", "convolution")


def costs(nodes: list[fx.Node]) -> dict[fx.Node, Cost]:
    """A product takes a second for a kilobyte of results, and anything else a twentieth of it."""

    def seconds(node: fx.Node) -> float:
        value = node.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        size = sum(tensor_bytes(v) for v in values if v is not None) / 1024
        return size if any(name in str(node.target) for name in PRODUCTS) else size / 20

    return {node: Cost(seconds(node), 0) for node in nodes}


def plan_case(
    case: Case,
    budgets: Sequence[int | None],
    schedule: str = "1f1b",
    cuts: Sequence[int] | None = None,
    optimizer: str | None = None,
    time_limit: float = 1.0,
    offload: str | None = None,
) -> PipelinePlan:
    """What `fxmem.pipeline` would plan on ``len(budgets)`` ranks."""
    model, x, target, loss_fn = case
    joint = capture(model, split_batch((x, target), MICROBATCHES)[0], loss_fn)
    names = Names(model)
    batch = x.nbytes + target.nbytes
    return plan_pipeline(
        joint,
        [Budget.parse(b) for b in budgets],
        schedule,
        MICROBATCHES,
        lambda ranks: [size + batch for size in names.resident_bytes(ranks, optimizer)],
        lambda name: names.weight_bytes(names.own(name), optimizer),
        Options(Budget(), costs, time_limit=time_limit, pool=False, offload=offload),
        cuts,
    )
