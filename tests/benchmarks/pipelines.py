"""One rank of GPT-2 or of a diffusion UNet in stages: numbers, peaks, who holds what."""

from __future__ import annotations

import torch
import torch.distributed as dist

import fxmem
from fxmem.allocator import record
from fxmem.budget import Budget
from fxmem.costs import MeasuredCosts
from fxmem.planning import Options
from fxmem.runtime.pipelining import ranks_of
from fxmem.stages.names import Names
from fxmem.stages.pipeline_plan import PipelinePlan
from fxmem.stages.pipeline_run import split_batch
from fxmem.stages.plan import plan_pipeline
from fxmem.stages.trace import capture
from tests.benchmarks import models
from tests.processes import join_group

MICROBATCHES = 8
# Of the first rank's plain peak, who holds most microbatches; the others may take all of theirs.
SHARES = {"gpt2": 0.7, "unet": 0.85}


def build(name: str) -> models.Built:
    """The published size, with a batch that splits into the microbatches."""
    module, inputs = models.build(name)
    times = max(1, MICROBATCHES // len(inputs[0]))
    return module, tuple(torch.cat([x] * times) for x in inputs)


def alone(name: str) -> dict[str, torch.Tensor]:
    """Gradients of one process, microbatch by microbatch."""
    module, inputs = build(name)
    for part in zip(*(x.chunk(MICROBATCHES) for x in inputs), strict=True):
        (module(*part) / MICROBATCHES).backward()
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def plan_alone(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    budgets: list[float | None],
    schedule: str,
) -> PipelinePlan:
    """What `fxmem.pipeline` plans for so many ranks, in one process."""
    joint = capture(module, split_batch(inputs, MICROBATCHES)[0], None)
    names = Names(module)
    return plan_pipeline(
        joint,
        [Budget.parse(b) for b in budgets],
        schedule,
        MICROBATCHES,
        lambda ranks: names.resident_bytes(ranks, None),
        lambda name: names.weight_bytes(names.own(name), None),
        Options(Budget(), MeasuredCosts(torch.device("cpu")), time_limit=20, pool=False),
    )


def work(rank: int, ranks: int, name: str, schedule: str, folder: str) -> None:
    join_group(rank, ranks, seconds=600)
    wanted = torch.load(f"{folder}/{name}.pt")
    module, inputs = build(name)
    budgets = [SHARES[name], *[1.0] * (ranks - 1)]
    pipe = fxmem.pipeline(module, budgets, inputs, schedule=schedule, time_limit=20)
    held = sum(v.nbytes for v in (*pipe.state_dict().values(), *inputs))
    peak = held + record(lambda: pipe.step(*inputs)).peak
    limit, predicted = pipe.plan.budget_bytes[rank], pipe.plan.peak_bytes[rank]
    print(f"{name} {schedule} rank {rank}: peak {peak} predicted {predicted} budget {limit}")
    assert limit is not None and peak <= predicted <= limit
    own = dict(pipe.named_parameters())
    for key, parameter in own.items():
        error = float((parameter.grad - wanted[key]).abs().max())
        assert error <= 2e-5 * max(1e-2, float(wanted[key].abs().max())), (key, error)
    for key, parameter in module.named_parameters():
        assert parameter.is_meta != (key in own)
    names: list[set[str]] = [set()] * ranks
    dist.all_gather_object(names, set(own))
    assert set.union(*names) == set(wanted)
    twice = {n for one in range(ranks) for n in names[one] if sum(n in s for s in names) > 1}
    places = ranks_of(schedule, ranks)
    tied = name == "gpt2" and places[0] != places[-1]  # embedding and head, on two ranks
    assert twice == ({"model.transformer.wte.weight"} if tied else set())
    dist.destroy_process_group()
