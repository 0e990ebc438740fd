"""`pipeline`: one training step over several processes, a stage or two on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from .budget import Budget
from .costs import CostTable, MeasuredCosts
from .errors import FxmemError, PipelineError, PlanMismatch
from .passes.stages import Stage, cut
from .pipeline_plan import PipelinePlan, trace_hash
from .planning import Options
from .residents import OPTIMIZERS, optimizer_bytes
from .runtime.pipelining import SCHEDULES, Engine
from .runtime.stage import StageRun
from .stage_fit import build
from .stage_plan import plan_pipeline
from .stage_trace import PREFIX, Loss, capture
from .storages import tensor_bytes


class Pipeline:
    """The stages of this rank; made by `fxmem.pipeline`.

    Attributes
    ----------
    plan : PipelinePlan
        Of all ranks.
    rank : int
    """

    def __init__(
        self,
        plan: PipelinePlan,
        stages: Mapping[int, Stage],
        parameters: dict[str, torch.nn.Parameter],
        buffers: dict[str, torch.Tensor],
        tied: Sequence[tuple[str, tuple[int, ...], Any]],
        has_target: bool,
        overwrite: bool,
    ) -> None:
        self.plan, self.rank = plan, dist.get_rank()
        self._parameters, self._buffers, self._tied = parameters, buffers, tied
        self._aliases: dict[str, str] = {}
        self._has_target = has_target
        splits = SCHEDULES[plan.schedule][2]
        runs = {}
        for s, stage in stages.items():
            graphs = build(stage, plan.stage_plans[s], overwrite and not splits)
            scale = 1 / plan.microbatches
            runs[s] = StageRun(stage, graphs, parameters, buffers, scale, splits)
        self._engine = Engine(runs, plan.schedule, plan.microbatches, torch.device("cpu"))
        self._broken = False

    def step(self, *inputs: Any, target: Any = None) -> torch.Tensor | None:
        """Run forward and backward of one batch; gradients are added to ``.grad``.

        Parameters
        ----------
        *inputs
            The model's, of the whole batch, alike on every rank; tensors are split along their
            first dimension into microbatches of equal size, others go to each.
        target
            The loss's, where the loss is outside the model.

        Returns
        -------
        torch.Tensor or None
            The mean of the microbatches' losses, on the rank of the last stage.

        Raises
        ------
        PipelineError
            Another rank failed, hung for longer than the process group's timeout, or went away.
        """
        if self._broken:
            raise PipelineError("an earlier step of this pipeline broke off; start anew.")
        given = (*inputs, target) if self._has_target else inputs
        batches = split_batch(given, self.plan.microbatches)
        try:
            losses = self._engine.step(batches)
            self._sum_tied()
        except (RuntimeError, dist.DistError) as error:
            self._broken = True
            if not _is_of_communication(error):
                raise
            doing = self._engine.doing
            where = f"{doing[0]} of microbatch {doing[2]} in stage {doing[1]}" if doing else "start"
            raise PipelineError(
                f"rank {self.rank} lost contact with another rank (its last action: {where}): that "
                "rank failed, hung or went away. See its own output, and start all ranks anew; "
                f"init_process_group(timeout=...) sets how long to wait. {error}"
            ) from error
        return torch.stack(losses).mean() if losses else None

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Parameters of this rank, for its optimizer."""
        return iter(self._parameters.values())

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The same with the model's names."""
        return iter(self._parameters.items())

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank by the model's names."""
        return {n: v.detach() for n, v in (*self._parameters.items(), *self._buffers.items())}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy what this rank holds from a full or partial state dict.

        Raises
        ------
        FxmemError
            A tensor of this rank is not there.
        """
        own = self.state_dict()
        missing = [n for n in own if n not in state]
        if missing:
            raise FxmemError(f"the state dict lacks {', '.join(missing)} of rank {self.rank}.")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def full_state_dict(self) -> dict[str, torch.Tensor] | None:
        """All ranks' state, on rank 0 (None elsewhere); every rank must call it."""
        parts: list[Any] | None = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object({n: v.cpu() for n, v in self.state_dict().items()}, parts)
        if parts is None:
            return None
        return {n: v for part in reversed(parts) for n, v in part.items()}

    def _sum_tied(self) -> None:
        for name, _, group in self._tied:
            if name in self._parameters:
                parameter = self._parameters[name]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=group)


def _is_of_communication(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    signs = ("gloo", "connection", "timed out", "timeout", "socket", "broken pipe", "nccl")
    return any(sign in text for sign in signs)


def split_batch(given: Sequence[Any], microbatches: int) -> list[tuple[Any, ...]]:
    """Microbatches of equal size; what is no tensor goes to each.

    Raises
    ------
    FxmemError
        A batch does not split evenly.
    """
    columns = []
    for value in given:
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            columns.append([value] * microbatches)
            continue
        if value.shape[0] % microbatches:
            raise FxmemError(
                f"a batch of {value.shape[0]} does not split into {microbatches} equal "
                "microbatches; change the batch or microbatches=."
            )
        columns.append(list(value.split(value.shape[0] // microbatches)))
    return [tuple(column[i] for column in columns) for i in range(microbatches)]


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
    names = _Names(model)
    table = MeasuredCosts(torch.device("cpu")) if isinstance(costs, str) else costs
    options = Options(
        Budget(), table, solver=solver, time_limit=time_limit, reuse=reuse, pool=False, seed=seed
    )
    batch_bytes = sum(tensor_bytes(v) for v in given if isinstance(v, torch.Tensor))

    def static_bytes(stages: Sequence[Stage]) -> int:
        own, buffers = names.held(stages)
        weights = sum(names.weight_bytes(n, optimizer) for n in own)
        return weights + sum(tensor_bytes(names.tensors[n]) for n in buffers) + batch_bytes

    told: list[Any] = [None]
    if rank == 0:
        try:
            told[0] = plan_pipeline(
                joint,
                _budgets(budgets, world),
                schedule,
                microbatches,
                static_bytes,
                lambda n: names.weight_bytes(names.own(n), optimizer),
                options,
                cuts,
            )
        except FxmemError as error:
            told[0] = error
    dist.broadcast_object_list(told)
    plan = told[0]
    if isinstance(plan, Exception):
        raise plan
    _compare(plan, trace_hash(joint), schedule, microbatches)
    stages = cut(joint, plan.cuts)
    held = [names.held([stages[s] for s in plan.stages_of(r)]) for r in range(world)]
    names.spread_unused(held)
    tied = _groups(held, names)
    parameters, buffers = names.keep(model, *held[rank])
    for name, ranks, group in tied:
        if rank in ranks:
            dist.broadcast(parameters[name].data, ranks[0], group=group)
    mine = {s: names.renamed(stages[s]) for s in plan.stages_of(rank)}
    return Pipeline(plan, mine, parameters, buffers, tied, loss_fn is not None, reuse)


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


def _groups(held: list[Any], names: _Names) -> list[tuple[str, tuple[int, ...], Any]]:
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


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, tensor.requires_grad)
    return empty


class _Names:
    """Tensors of a model by name; a tied parameter goes by the first of its names."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.first: dict[str, str] = {}
        by_id: dict[int, str] = {}
        both = (model.named_parameters, model.named_buffers)
        for name, tensor in (p for each in both for p in each(remove_duplicate=False)):
            self.first[name] = by_id.setdefault(id(tensor), name)
            self.tensors.setdefault(self.first[name], tensor)

    def own(self, target: str) -> str:
        """The name that a parameter or buffer of the trace goes by."""
        return self.first[target.removeprefix(PREFIX)]

    def held(self, stages: Sequence[Stage]) -> tuple[list[str], list[str]]:
        """Parameters and buffers that some stages hold."""
        found = []
        for kind in ("parameter", "buffer"):
            told = [n for s in stages for n in s.names(kind)]
            if kind == "parameter":
                told += [n for s in stages for n in s.weights]
            found.append(list(dict.fromkeys(map(self.own, told))))
        return found[0], found[1]

    def spread_unused(self, held: list[tuple[list[str], list[str]]]) -> None:
        """What no stage reads stays with the first rank, so that the state is complete."""
        known = {n for own, buffers in held for n in (*own, *buffers)}
        for name, tensor in self.tensors.items():
            if name not in known:
                held[0][0 if isinstance(tensor, torch.nn.Parameter) else 1].append(name)

    def weight_bytes(self, name: str, optimizer: str | None) -> int:
        """Weight, gradient and optimizer state."""
        tensor = self.tensors[name]
        size = tensor_bytes(tensor)
        if not tensor.requires_grad:
            return size
        if optimizer is None:
            return 2 * size
        if optimizer.lower() not in OPTIMIZERS:
            return 2 * size + optimizer_bytes(torch.nn.Module(), optimizer)  # says what is known
        holder = torch.nn.Module()
        holder.weight = torch.nn.Parameter(torch.empty_like(tensor, device="meta"))
        return 2 * size + optimizer_bytes(holder, optimizer)

    def renamed(self, stage: Stage) -> Stage:
        """The stage with the model's own names."""
        sources = tuple(
            replace(s, name=self.own(str(s.name))) if s.kind in ("parameter", "buffer") else s
            for s in stage.sources
        )
        return replace(
            stage,
            sources=sources,
            weights=tuple(map(self.own, stage.weights)),
            written=tuple(map(self.own, stage.written)),
        )

    def keep(
        self, model: torch.nn.Module, own: list[str], buffers: list[str]
    ) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.Tensor]]:
        """Materialise what is this rank's and drop the rest from the model."""
        kept: dict[str, torch.Tensor] = {}
        dropped: dict[str, torch.Tensor] = {}  # what is tied stays so
        fresh = set()
        for name in (*own, *buffers):
            tensor = self.tensors[name]
            if tensor.is_meta:
                empty = torch.empty_like(tensor, device="cpu")
                fresh.add(name)
                if isinstance(tensor, torch.nn.Parameter):
                    empty = torch.nn.Parameter(empty, tensor.requires_grad)
                tensor = empty
            kept[name] = tensor
        for path, module in model.named_modules():
            for table in (module._parameters, module._buffers):
                for key, value in list(table.items()):
                    if value is None:
                        continue
                    name = self.first[f"{path}.{key}" if path else key]
                    if name in kept:
                        table[key] = kept[name]  # type: ignore[assignment]
                    else:
                        table[key] = dropped.setdefault(name, _without_data(value))  # type: ignore[assignment]
        self._initialise(model, fresh)
        self.tensors = {n: t.to("meta") for n, t in self.tensors.items()}
        return {n: kept[n] for n in own}, {n: kept[n] for n in buffers}  # type: ignore[misc]

    def _initialise(self, model: torch.nn.Module, fresh: set[str]) -> None:
        for path, module in model.named_modules():
            direct = {**module._parameters, **module._buffers}
            wanted = {
                self.first[f"{path}.{k}" if path else k] for k, v in direct.items() if v is not None
            } & fresh
            if not wanted:
                continue
            reset = getattr(module, "reset_parameters", None)
            if reset is None:
                raise FxmemError(
                    f"{', '.join(sorted(wanted))} lie on meta, and {type(module).__name__} has no "
                    "reset_parameters to initialise them. Give them values before: build that "
                    "module on the CPU."
                )
            reset()
            fresh -= wanted
