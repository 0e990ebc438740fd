"""The stages of one rank at work: steps, parameters and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..errors import FxmemError, PipelineError, TransferError
from ..passes.stages import Stage
from ..runtime.pipelining import SCHEDULES, Engine
from ..runtime.stage import StageRun
from .fit import build
from .pipeline_plan import PipelinePlan


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
            Another rank failed, hung for longer than the process group's timeout, or went away;
            or a value of this one could not be moved away or back.
        """
        if self._broken:
            raise PipelineError("an earlier step of this pipeline broke off; start anew.")
        given = (*inputs, target) if self._has_target else inputs
        batches = split_batch(given, self.plan.microbatches)
        try:
            losses = self._engine.step(batches)
            self._sum_tied()
        except TransferError as error:
            self._broken = True
            raise PipelineError(
                f"rank {self.rank} could not go on, so that no other can: {error.fault} Some "
                "gradients are in part added; make room there or give offload another directory, "
                "and start all ranks anew."
            ) from error
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
