"""Prove a planned step by a run, and give it an arena if the budget holds with one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.fx as fx

from .arena_plan import ALIGNMENT, ArenaPlan, plan_arena
from .compile import boxed
from .passes.shard import stages_of
from .planning import PlannedStep
from .runtime.arena import StepArena
from .runtime.devices import marker
from .runtime.native import Native
from .runtime.prove import Boxed, Proof, prove
from .runtime.spill import ADDRESS
from .storages import tensor_bytes

log = logging.getLogger("fxmem")


@dataclass(frozen=True)
class Recorded:
    """A proved step, and who asked for what.

    Attributes
    ----------
    proof : Proof
    operators : sequence of str
        Names of the marks in the recording.
    """

    proof: Proof
    operators: Sequence[str]


def run_graph(module: fx.GraphModule) -> Boxed:
    """A function of a list that runs one graph, and tells profilers of the device at work."""
    stages = stages_of(module.graph)
    return boxed(module, marker(stages) if any(s is not None for s in stages) else None)


def backward_of(step: PlannedStep) -> Boxed:
    """The step's backward part, as it will run."""
    return step.run_backward or run_graph(step.graphs.backward)


def prove_step(
    step: PlannedStep, forward: Boxed, args: list[Any], native: Native | None, by_operator: bool
) -> Recorded:
    """Run the step once without effects.

    Parameters
    ----------
    step : PlannedStep
    forward : callable
        The compiled forward part.
    args : list
        The step's primals.
    native : Native, optional
        Records what is asked for.
    by_operator : bool
        Run the graphs operator by operator, so that the recording names each one.
    """
    runs, names = (forward, backward_of(step)), ["forward", "backward"]
    if native is not None and by_operator:
        nodes = [list(g.graph.nodes) for g in (step.graphs.forward, step.graphs.backward)]
        names = [str(n.meta.get("of", n.name)) for part in nodes for n in part]
        mark, first = native.mark, len(nodes[0])
        runs = (
            boxed(step.graphs.forward, mark),
            boxed(step.graphs.backward, lambda i: mark(first + i)),
        )
    elif native is not None:
        runs = (_after(native, 0, runs[0]), _after(native, 1, runs[1]))
    return Recorded(_run(step, runs, args, native), names)


def _after(native: Native, mark: int, run: Boxed) -> Boxed:
    def marked(args: list[Any]) -> Any:
        native.mark(mark)
        return run(args)

    return marked


def _run(
    step: PlannedStep, runs: tuple[Boxed, Boxed], args: list[Any], native: Native | None
) -> Proof:
    written = len(step.written_inputs)
    outputs, logical = step.forward_outputs, len(step.plan.devices)
    return prove(*runs, args, outputs, written, step.tangents, step.device, native, logical)


def place_step(
    step: PlannedStep, forward: Boxed, args: list[Any], recorded: Recorded, native: Native
) -> int:
    """Give the step an arena; returns by how many bytes it would pass the budget, or 0.

    The step with its arena is proved by another run.
    """
    proof, plan = recorded.proof, step.plan
    tangents = sum(tensor_bytes(t) for t in step.tangents)
    assert proof.events is not None
    alignment = ADDRESS if plan.transfers else ALIGNMENT
    pool = plan_arena(proof.events, proof.turn, recorded.operators, tangents, alignment=alignment)
    if pool is None:
        return 0
    over, room = _beyond(pool, step)
    if over > 0:
        return over
    arena = StepArena(pool, native, room)
    backward = backward_of(step)
    runs = (lambda a: arena.forward(forward, a), lambda a: arena.backward(backward, a))
    peak = plan.resident_bytes + _run(step, runs, args, None).peak_bytes
    if plan.budget_bytes is not None and peak > plan.budget_bytes:
        log.info("with the arena %d bytes were measured: it is not used", peak)
        return peak - plan.budget_bytes
    step.arena, step.measured = arena, peak
    step.plan = replace(plan, pool=pool, peak_bytes=plan.resident_bytes + pool.peak_bytes)
    return 0


def _beyond(pool: ArenaPlan, step: PlannedStep) -> tuple[int, int | None]:
    """Bytes over the budget, and those that it leaves to others between steps."""
    plan = step.plan
    if plan.budget_bytes is None:
        return 0, None
    limit = plan.budget_bytes - plan.resident_bytes
    return max(0, pool.peak_bytes - limit), limit - pool.arena_bytes - pool.outside_bytes
