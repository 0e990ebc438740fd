"""One rank of a net of uneven layers, cut as users cut it and as fxmem does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import fxmem
from fxmem.allocator import record
from tests.processes import join_group

MICROBATCHES, STEPS = 8, 12


class Shrinking(nn.Module):
    """A convolutional net of one width: its resolution, and with it all else, shrinks."""

    def __init__(self, width: int = 48, count: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Conv2d(width if i else 3, width, 3, stride=1 + i % 2, padding=1)
            for i in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = functional.gelu(block(x))
        return x


def case() -> tuple[Shrinking, Tensor, Tensor]:
    """Model, batch and target."""
    torch.manual_seed(0)
    return Shrinking(), torch.randn(4 * MICROBATCHES, 3, 64, 64), torch.zeros(4 * MICROBATCHES)


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    return (output.square().mean((1, 2, 3)) - target).mean()


def users_cuts(model: Shrinking) -> dict[str, int]:
    """The first block of the second device: equal numbers, and accelerate's device map."""
    from accelerate import infer_auto_device_map

    whole = sum(p.nbytes for p in model.parameters())
    placed = infer_auto_device_map(model, {0: whole // 2, 1: whole})
    second = next(i for i in range(len(model.blocks)) if placed.get(f"blocks.{i}", 1) == 1)
    return {"even": len(model.blocks) // 2, "accelerate": second}


def torch_way(rank: int, block: int) -> tuple[Callable[[], object], int]:
    """A step of torch's own pipeline with its split before ``block``, and bytes held."""
    from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline

    model, x, target = case()
    split = {f"blocks.{block}": SplitPoint.BEGINNING}
    stage = pipeline(model, (x[:4],), split_spec=split).build_stage(rank, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_fn)
    given = {"args": (x,), "target": None} if rank == 0 else {"args": (), "target": target}
    held = sum(p.nbytes for p in stage.submod.parameters()) + x.nbytes + target.nbytes
    return lambda: schedule.step(*given["args"], target=given["target"]), held


def our_way(budget: int) -> tuple[Callable[[], object], int]:
    """A step of ours with so many bytes on each rank."""
    model, x, target = case()
    pipe = fxmem.pipeline(
        model, [budget] * 2, (x,), target=target, loss_fn=loss_fn, microbatches=MICROBATCHES
    )
    print(pipe.plan.cuts, pipe.plan.peak_bytes, pipe.plan.budget_bytes, pipe.plan.gap, flush=True)
    held = sum(v.nbytes for v in pipe.state_dict().values()) + x.nbytes + target.nbytes
    return lambda: pipe.step(x, target=target), held


def work(rank: int, folder: str) -> None:
    """Write, for each way, the slowest rank's seconds of a step and the highest peak.

    Seconds are of this process's own computing: what waits for another rank takes none.
    """
    join_group(rank, 2, seconds=600)
    told: dict[str, dict[str, tuple[float, int]]] = {}
    for name, block in users_cuts(case()[0]).items():
        theirs = _measured(*torch_way(rank, block))
        ours = _measured(*our_way(int(0.85 * theirs[1])))
        told[name] = {"theirs": theirs, "ours": ours}
    if rank == 0:
        (Path(folder) / "told.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def _measured(step: Callable[[], object], held: int) -> tuple[float, int]:
    """Of both ranks: most seconds of computing in a step, and most bytes."""
    peak = held + record(step).peak
    seconds = []
    for _ in range(STEPS):
        dist.barrier()
        start = time.process_time()
        step()
        seconds.append(time.process_time() - start)
    both: list[tuple[float, int]] = [(0.0, 0)] * 2
    dist.all_gather_object(both, (min(seconds), peak))
    return max(s for s, _ in both), max(p for _, p in both)
