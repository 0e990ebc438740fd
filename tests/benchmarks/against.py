"""fxmem against what users have, at the same peak, in the same run.

    python -m tests.benchmarks.against gpt2 [--rounds 9] [--peers checkpoint,0.4]

Peaks are exact and count what a step takes above parameters and inputs. Times are medians
over rounds in which every way takes two steps in turn, the second one timed, as multiples of
eager's.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import fxmem
from fxmem.allocator import record
from fxmem.residents import count_residents

from .models import build
from .peers import TORCH_BUDGETS, checkpointed, torch_budget

MIB = 2**20


@dataclass
class Way:
    """One way to train a module, and what was measured of it."""

    name: str
    module: torch.nn.Module
    call: Callable[..., torch.Tensor]
    peak: int = 0
    seconds: float = 0.0

    def step(self, inputs: tuple[Any, ...]) -> float:
        """Take one step from no gradients; return its seconds."""
        for parameter in self.module.parameters():
            parameter.grad = None
        start = time.perf_counter()
        self.call(*inputs).backward()
        return time.perf_counter() - start


def measure_peaks(ways: list[Way], inputs: tuple[Any, ...]) -> None:
    """Fill in the peak of each way, in bytes above what the step starts with."""
    for way in ways:
        way.step(inputs)
        way.step(inputs)
        for parameter in way.module.parameters():
            parameter.grad = None
        way.peak = record(lambda way=way: way.call(*inputs).backward()).peak


def measure_times(ways: list[Way], inputs: tuple[Any, ...], rounds: int) -> None:
    """Fill in the median seconds of each way, all of them in turn in each round."""
    seen: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            way.step(inputs)  # as in training alone: memory that others took in between is back
            seen[way.name].append(way.step(inputs))
    for way in ways:
        way.seconds = statistics.median(seen[way.name])


def peers_of(name: str, module: torch.nn.Module, chosen: list[str] | None) -> list[Way]:
    """Every other way that works on the model; what fails is printed."""
    table: dict[str, Callable[[torch.nn.Module], Any]] = {"checkpoint": checkpointed}
    for share in TORCH_BUDGETS:
        table[f"torch {share}"] = lambda m, share=share: torch_budget(m, share)
    ways = []
    for label, make in table.items():
        if chosen and label.split()[-1] not in chosen:
            continue
        twin = copy.deepcopy(module)
        try:
            way = Way(label, twin, make(twin))
            way.step(build(name)[1])
            ways.append(way)
        except Exception as error:  # a peer that fails is a result, not a crash
            print(f"{label} fails on {name}: {type(error).__name__}: {str(error)[:90]}")
    return ways


def compare(name: str, rounds: int, chosen: list[str] | None, time_limit: float) -> list[str]:
    """Markdown rows: each peer, and fxmem at that peer's peak."""
    module, inputs = build(name)
    resident = count_residents(module, inputs).total
    eager = Way("eager", module, module)
    free_module = copy.deepcopy(module)
    free = Way("fxmem, no budget", free_module, fxmem.optimize(free_module, None, inputs))
    peers = peers_of(name, module, chosen)
    measure_peaks([eager, free, *peers], inputs)
    ways = [eager, free]
    pairs: list[tuple[Way, Way]] = []
    for peer in [eager, *peers]:
        twin = copy.deepcopy(module)
        budget = resident + peer.peak
        fitted = fxmem.optimize(twin, budget, inputs, time_limit=time_limit)
        plan = fitted.plan
        assert plan is not None
        print(f"at {peer.name}: {plan.overhead:+.1%} predicted, gap {plan.gap:.2%}", flush=True)
        pairs.append((peer, Way(f"fxmem at {peer.name}", twin, fitted)))
    measure_peaks([ours for _, ours in pairs], inputs)
    ways += [*peers, *(ours for _, ours in pairs)]
    measure_times(ways, inputs, rounds)
    rows = [
        "| | its peak, MiB | its time | fxmem at that peak, MiB | its time | ratio |",
        "|---|---|---|---|---|---|",
        f"| fxmem, no budget | {free.peak / MIB:.1f} | {free.seconds / eager.seconds:.2f} | | | |",
    ]
    for peer, ours in pairs:
        rows.append(
            f"| {peer.name} | {peer.peak / MIB:.1f} | {peer.seconds / eager.seconds:.2f} "
            f"| {ours.peak / MIB:.1f} | {ours.seconds / eager.seconds:.2f} "
            f"| {ours.seconds / peer.seconds:.2f} |"
        )
    return rows


def main() -> None:
    """Print the table for one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers", help="comma-separated: checkpoint, 1.0, 0.8, ...")
    parser.add_argument("--time-limit", type=float, default=10.0)
    args = parser.parse_args()
    chosen = args.peers.split(",") if args.peers else None
    print("\n".join(compare(args.model, args.rounds, chosen, args.time_limit)))


if __name__ == "__main__":
    main()
