"""`pipeline`: one training step over several processes, a stage or two on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .arguments import read_directory
from .budget import Budget
from .costs import CostTable, MeasuredCosts, RecordedCosts
from .errors import FxmemError, PlanMismatch
from .passes.agree import agree
from .passes.stages import Stage, cut
from .planning import Options
from .runtime.pipelining import SCHEDULES
from .stages.names import Names
from .stages.pipeline_plan import PipelinePlan, trace_hash
from .stages.pipeline_run import Pipeline, split_batch
from .stages.plan import plan_pipeline
from .stages.trace import Loss, capture
from .storages import tensor_bytes


def pipeline(
    model: torch.nn.Module,
    budgets: Any,
    example_inputs: Sequence[Any],
    *,
    target: Any = None,
    loss_fn: Loss | None = None,
    schedule: str = "1f1b",
    microbatches: int = 8,
    optimizer: str | None = None,
    offload: str | Path | None = None,
    cuts: Sequence[int] | None = None,
    costs: str | CostTable = "measured",
    solver: str = "auto",
    time_limit: float = 30.0,
    reuse: bool = True,
    seed: int = 0,
) -> Pipeline:
    """Cut a model into stages over the ranks of the default process group.

    Every rank calls this alike. The first plans, the others take its plan, and all compare a
    hash of it and of their own trace.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters of other ranks are dropped from it. On "meta", those of this rank are made
        and initialised by their modules' ``reset_parameters``.
    budgets : sequence or mapping, or one budget
        Bytes of each rank, in order: all that it holds during a step.
    example_inputs : sequence
        Of a whole batch.
    target
        An example of the loss's target, with ``loss_fn``.
    loss_fn : callable, optional
        Of (output, target), a mean over its batch; None: the model returns its loss.
    schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"}
    microbatches : int
    optimizer : str, optional
        Its state is charged.
    offload : str or Path, optional
        A directory on every rank's machine to which its stages may move values.
    cuts : sequence of int, optional
        Given, they are not chosen.

    Raises
    ------
    InfeasibleBudget, TraceError
    PlanMismatch
        The ranks have different models or arguments.
    """
    if schedule not in SCHEDULES:
        raise FxmemError(f"schedule={schedule!r} is not known; give one of {', '.join(SCHEDULES)}.")
    if not dist.is_initialized():
        raise FxmemError("call torch.distributed.init_process_group first, or run under torchrun.")
    rank, world = dist.get_rank(), dist.get_world_size()
    given = (*example_inputs, target) if loss_fn is not None else tuple(example_inputs)
    joint = capture(model, split_batch(given, microbatches)[0], loss_fn)
    names = Names(model)
    table = MeasuredCosts(torch.device("cpu")) if isinstance(costs, str) else costs
    options = Options(
        Budget(),
        table,
        solver=solver,
        time_limit=time_limit,
        reuse=reuse,
        pool=False,
        offload=_directory(offload, model),
        seed=seed,
    )
    batch_bytes = sum(tensor_bytes(v) for v in given if isinstance(v, torch.Tensor))

    def static_bytes(ranks: Sequence[Sequence[Stage]]) -> list[int]:
        return [size + batch_bytes for size in names.resident_bytes(ranks, optimizer)]

    told: list[Any] = [None]
    if rank == 0:
        try:
            recorded = RecordedCosts(table)
            joint = agree(joint, recorded)
            plan = plan_pipeline(
                joint,
                _budgets(budgets, world),
                schedule,
                microbatches,
                static_bytes,
                lambda n: names.weight_bytes(names.own(n), optimizer),
                options,
                cuts,
            )
            told[0] = plan, recorded.known
        except FxmemError as error:
            told[0] = error
    dist.broadcast_object_list(told)
    if isinstance(told[0], Exception):
        raise told[0]
    plan, known = told[0]
    if rank > 0:
        joint = agree(joint, RecordedCosts(None, known))
    _compare(plan, trace_hash(joint), schedule, microbatches)
    stages = cut(joint, plan.cuts)
    held = names.shared_out([[stages[s] for s in plan.stages_of(r)] for r in range(world)])
    tied = _groups(held, names)
    parameters, buffers = names.keep(model, *held[rank])
    for name, ranks, group in tied:
        if rank in ranks:
            dist.broadcast(parameters[name].data, ranks[0], group=group)
    mine = {s: names.renamed(stages[s]) for s in plan.stages_of(rank)}
    return Pipeline(plan, mine, parameters, buffers, tied, loss_fn is not None, reuse)


def _directory(offload: str | Path | None, model: torch.nn.Module) -> str | None:
    """The directory to move values to, which must be there on all ranks."""
    found, error = None, None
    try:
        found = read_directory(offload, model)
    except FxmemError as refused:
        error = str(refused)
    told: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, error)
    for rank, message in enumerate(told):
        if message is not None:
            raise FxmemError(f"rank {rank}: {message}")
    return found


def _budgets(budgets: Any, world: int) -> list[Budget]:
    if isinstance(budgets, Mapping):
        budgets = list(budgets.values())
    if not isinstance(budgets, (list, tuple)):
        budgets = [budgets] * world
    if len(budgets) != world:
        raise FxmemError(f"there are {len(budgets)} budgets and {world} ranks; give one for each.")
    return [Budget.parse(b) for b in budgets]


def _compare(plan: PipelinePlan, own_trace: str, schedule: str, microbatches: int) -> None:
    """Every rank must have the plan's trace and arguments before anything runs."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (plan.hash, own_trace, schedule, microbatches))
    different = [r for r, told in enumerate(found) if told != found[0]]
    if different:
        raise PlanMismatch(
            f"rank {', '.join(map(str, different))} has another step than rank 0: another model, "
            "input shapes, schedule, microbatches or version of torch. Call fxmem.pipeline alike "
            "on every rank."
        )


def _groups(held: list[Any], names: Names) -> list[tuple[str, tuple[int, ...], Any]]:
    """Parameters that several ranks hold, those ranks, and their process group."""
    groups: dict[tuple[int, ...], Any] = {}
    found = []
    for name in names.tensors:
        ranks = tuple(r for r, (own, _) in enumerate(held) if name in own)
        if len(ranks) > 1:
            if ranks not in groups:
                groups[ranks] = dist.new_group(list(ranks))
            found.append((name, ranks, groups[ranks]))
    return found
