"""A plain training loop on the example inputs, for the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..allocator import record, record_cuda
from ..fitted import ExampleInputs, FittedModule
from ..measure import loss_of
from ..residents import count_residents


def train_steps(
    fitted: FittedModule, optimizer: torch.optim.Optimizer, inputs: ExampleInputs, steps: int
) -> Iterator[dict[str, Any]]:
    """Train, and yield number, loss and seconds of each step as it ends."""
    for number in range(1, steps + 1):
        start = time.perf_counter()
        loss = _step(fitted, optimizer, inputs)
        yield {"step": number, "loss": loss, "seconds": time.perf_counter() - start}


def measured_peak(
    fitted: FittedModule, optimizer: torch.optim.Optimizer, inputs: ExampleInputs
) -> int:
    """Peak bytes of forward and backward of one more step, residents included."""
    leaves = tree_leaves(inputs)
    held = count_residents(fitted._orig_mod, leaves, optimizer).total
    on = next((v.device for v in leaves if isinstance(v, torch.Tensor)), torch.device("cpu"))

    def step() -> None:
        _loss(fitted, inputs).backward()

    recorded = record_cuda(step, on) if on.type == "cuda" else record(step)
    optimizer.zero_grad(set_to_none=True)
    return held + recorded.peak


def _step(fitted: FittedModule, optimizer: torch.optim.Optimizer, inputs: ExampleInputs) -> float:
    loss = _loss(fitted, inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _loss(fitted: FittedModule, inputs: ExampleInputs) -> torch.Tensor:
    if isinstance(inputs, Mapping):
        return loss_of(fitted(**inputs))
    return loss_of(fitted(*inputs))
