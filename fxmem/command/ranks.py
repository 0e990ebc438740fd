"""`fxmem train` under torchrun: as many stages of the model as processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import typer
from torch.utils._pytree import tree_leaves

from ..allocator import record
from ..budget import format_bytes
from ..errors import FxmemError
from ..measure import loss_of
from ..parallel import pipeline
from ..residents import OPTIMIZERS
from ..stages.pipeline_run import Pipeline
from ..storages import tensor_bytes
from .parts import load_model


def launched() -> bool:
    """Is this one of several processes of torchrun?"""
    return dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def train_ranks(
    model: str,
    budget: str | None,
    steps: int,
    optimizer: str,
    rate: float,
    as_json: bool,
    seed: int,
    **how: Any,
) -> None:
    """Train a few steps on the example inputs, and measure one on each rank.

    Parameters
    ----------
    model : str
        A factory; every process calls it.
    budget : str, optional
        One for each rank, separated by commas, or one for all.
    steps : int
    optimizer : str
        A name from `residents.OPTIMIZERS`.
    rate : float
    as_json : bool
    seed : int
    **how
        Of `fxmem.pipeline`.

    Raises
    ------
    FxmemError
        A rank measured over its budget, or what `fxmem.pipeline` raises.
    """
    with _group():
        torch.manual_seed(seed)
        module, inputs = load_model(model)
        if isinstance(inputs, Mapping):
            raise FxmemError("several processes need inputs by position; give a tuple of them.")
        limits: Any = budget if budget is None or "," not in budget else budget.split(",")
        pipe = pipeline(
            module, limits, inputs, loss_fn=_loss, optimizer=optimizer, seed=seed, **how
        )
        own = list(pipe.parameters())
        chosen = OPTIMIZERS[optimizer](own, lr=rate) if own else None
        rows = []
        for number in range(1, steps + 1):
            rows.append({"step": number, **_step(pipe, chosen, inputs)})
            if pipe.rank == 0 and not as_json:
                row = rows[-1]
                typer.echo(f"step {number}  loss {row['loss']:.6g}  {row['seconds'] * 1e3:.1f} ms")
        peaks = _gathered(_peak(pipe, chosen, inputs))
        if pipe.rank == 0:
            _tell(pipe, rows, peaks, as_json)
        limited = zip(peaks, pipe.plan.budget_bytes, strict=True)
        over = [r for r, (peak, limit) in enumerate(limited) if limit is not None and peak > limit]
        if over:
            raise FxmemError(f"rank {', '.join(map(str, over))} measured over its budget.")


@contextmanager
def _group() -> Iterator[None]:
    """The process group of torchrun's processes."""
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _loss(output: Any, _target: None) -> torch.Tensor:
    return loss_of(output)


def _step(
    pipe: Pipeline, optimizer: torch.optim.Optimizer | None, inputs: tuple[Any, ...]
) -> dict[str, float]:
    """Loss and seconds of a step; only the rank of the last stage knows the loss."""
    start = time.perf_counter()
    loss = pipe.step(*inputs)
    if optimizer is not None:
        optimizer.step()
    pipe.zero_grad()
    seconds = time.perf_counter() - start
    losses = _gathered(None if loss is None else loss.item())
    return {"loss": next(v for v in losses if v is not None), "seconds": seconds}


def _peak(pipe: Pipeline, optimizer: torch.optim.Optimizer | None, inputs: tuple[Any, ...]) -> int:
    """Bytes at most on this rank in one more step, all that it holds throughout included."""
    state = [] if optimizer is None else tree_leaves(list(optimizer.state.values()))
    held = [*pipe.state_dict().values(), *state, *inputs]
    resident = sum(tensor_bytes(v) for v in held if isinstance(v, torch.Tensor))
    peak = record(lambda: pipe.step(*inputs)).peak
    pipe.zero_grad()
    return resident + peak


def _gathered(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _tell(pipe: Pipeline, rows: list[dict[str, Any]], peaks: list[int], as_json: bool) -> None:
    plan = pipe.plan
    if as_json:
        told = {
            "steps": rows,
            "cuts": plan.cuts,
            "measured_peak_bytes": peaks,
            "predicted_peak_bytes": plan.peak_bytes,
            "budget_bytes": plan.budget_bytes,
            "step_seconds": plan.step_seconds,
            "gap": plan.gap,
        }
        typer.echo(json.dumps(told, indent=1))
        return
    for rank, (peak, limit) in enumerate(zip(peaks, plan.budget_bytes, strict=True)):
        against = "no budget" if limit is None else f"budget {format_bytes(limit)}"
        typer.echo(f"rank {rank}  peak {format_bytes(peak)} measured, {against}")
