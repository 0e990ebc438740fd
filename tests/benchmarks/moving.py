"""Values moved to disk: how low a step gets, and what that costs.

    python -m tests.benchmarks.moving gpt2 [--directory /tmp] [--rounds 9]

Peaks are the allocator's own, residents included. Times are medians over interleaved rounds, as
multiples of the same module's step without a budget. "hooks" moves everything that autograd
saves, by ``torch.autograd.graph.saved_tensors_hooks`` over the same files; fxmem gets its peak.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from typing import Any

import torch

import fxmem
from fxmem.costs.links import measure_tier
from fxmem.residents import count_residents
from fxmem.runtime.transfer import copy_in, copy_out, wait_in, wait_out

from .against import MIB, Way, measure_peaks, measure_times
from .models import build


def hooked(module: torch.nn.Module, directory: str) -> Any:
    """A call of ``module`` that writes all it saves to ``directory`` and reads it when needed."""
    residents = {p.untyped_storage().data_ptr() for p in module.parameters()}

    def pack(value: torch.Tensor) -> Any:
        if value.untyped_storage().data_ptr() in residents or value.numel() == 0:
            return value
        layout = (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype)
        whole = value.untyped_storage().nbytes()
        return wait_out(copy_out(value, directory, "saved"), value), whole, layout

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        ticket, whole, (shape, strides, offset, dtype) = packed
        flat = wait_in(ticket, copy_in(ticket, (whole,), (1,), torch.uint8))
        made = torch.empty(0, dtype=dtype)
        return made.set_(flat.untyped_storage(), offset, shape, strides)

    def call(*args: Any) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return module(*args)

    return call


def least_budget(module: torch.nn.Module, inputs: Any, **how: Any) -> int:
    """The least bytes that a search finds."""
    try:
        fxmem.optimize(copy.deepcopy(module), 1, inputs, **how)
    except fxmem.InfeasibleBudget as error:
        assert error.minimum_bytes is not None
        return error.minimum_bytes
    raise AssertionError("one byte was enough")


def check_equal(ways: list[Way], inputs: Any) -> None:
    """Gradients of all ways, bit for bit those of the first."""
    wanted = None
    for way in ways:
        torch.manual_seed(0)
        way.step(inputs)
        found = [p.grad for p in way.module.parameters()]
        wanted = wanted or found
        assert all(a is b or torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), (
            way.name
        )


def compare(name: str, directory: str, rounds: int, time_limit: float) -> None:
    """Print the table for one model."""
    module, inputs = build(name)
    resident = count_residents(module, inputs).total
    print(measure_tier(directory))
    alone = least_budget(module, inputs, time_limit=time_limit)
    moving = least_budget(module, inputs, time_limit=time_limit, offload=directory)
    print(
        f"least by recomputation {(alone - resident) / MIB:.1f} MiB, "
        f"moving too {(moving - resident) / MIB:.1f} MiB above {resident / MIB:.1f}"
    )

    def ours(label: str, budget: int | None, **how: Any) -> Way | None:
        twin = copy.deepcopy(module)
        try:
            fitted = fxmem.optimize(twin, budget, inputs, time_limit=time_limit, **how)
        except fxmem.InfeasibleBudget as error:
            print(f"{label}: {str(error).splitlines()[1]}")
            return None
        plan = fitted.plan
        assert plan is not None
        moved = sum(t.direction == "out" for t in plan.transfers)
        print(
            f"{label}: {plan.overhead:+.1%} predicted, gap {plan.gap:.2%}, {moved} moved",
            flush=True,
        )
        way = Way(label, twin, fitted)
        ways.append(way)
        limits[label] = budget
        return way

    ways: list[Way] = []
    limits: dict[str, int | None] = {}
    ours("no budget", None)
    twin = copy.deepcopy(module)
    hooks = Way("hooks", twin, hooked(twin, directory))
    measure_peaks([hooks], inputs)
    ours("moving, at the hooks' peak", resident + hooks.peak, offload=directory)
    ours("recomputing, at its least", alone)
    ours("moving, at that budget", alone, offload=directory)
    ours("moving, at its least", moving, offload=directory)
    measure_peaks(ways[:1], inputs)
    middle = (alone + resident + ways[0].peak) // 2
    ours("recomputing, half way", middle)
    ours("moving, half way", middle, offload=directory)
    check_equal(ways, inputs)
    measure_peaks(ways, inputs)
    measure_times([*ways, hooks], inputs, rounds)
    print("| | budget, MiB | peak, MiB | time |\n|---|---|---|---|")
    for way in [*ways, hooks]:
        limit = limits.get(way.name)
        told = "" if limit is None else f"{(limit - resident) / MIB:.1f}"
        assert limit is None or resident + way.peak <= limit, way.name
        print(
            f"| {way.name} | {told} | {way.peak / MIB:.1f} | {way.seconds / ways[0].seconds:.2f} |"
        )


def main() -> None:
    """Print the table for one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--directory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--time-limit", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        compare(args.model, directory, args.rounds, args.time_limit)


if __name__ == "__main__":
    main()
