"""Rotor: the optimal plan for a chain whose stages are saved whole, by input, or not at all."""

from __future__ import annotations

import time as clock
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import Arrays
from .chainplan import FOREVER, ChainCosts, ChainPlan
from .evaluate import evaluate
from .problem import RematProblem
from .stages import Chain, Stage, chain_of_stages, local_peak, made_for

MOST_STAGES = 120
MOST_CELLS = 8_000_000  # of the table: 64 MB
MOST_SLOTS = 4000
SPEED = 2e8  # steps of the table's innermost loop in a second, cautiously


@dataclass(frozen=True)
class Way:
    """A way to save a stage.

    Attributes
    ----------
    saved : frozenset of int
        Storages that stay from the forward run on, the stage's result included.
    backward : tuple of int
        Operators of the backward run, with what it makes again.
    """

    saved: frozenset[int]
    backward: tuple[int, ...]


def rotor(problem: RematProblem, a: Arrays, budget: int | None, deadline: float) -> np.ndarray:
    """Beaumont et al., "Optimal checkpointing for heterogeneous chains" (INRIA RR-9302, 2019).

    Their stages are layers of ``nn.Sequential``; here they lie between the cuts of `stages`,
    and plans are expanded to operators. Their one memory limit is the budget less what lies
    outside the chain; here plans for all memories are read from one table, and the fastest
    that keeps the budget when it is replayed to the byte is taken. Where the graph is no chain
    there is one stage, and the answer is to keep everything.
    """
    chain = chain_of_stages(problem, a, MOST_STAGES)
    ways = [(keep_all(problem, chain, stage),) for stage in chain.stages]
    return best_plan(problem, a, budget, chain, ways, deadline)


def keep_all(problem: RematProblem, chain: Chain, stage: Stage) -> Way:
    """All that the backward run reads is saved."""
    own = {s for v in stage.forward if v not in chain.held for s in problem.writes[v]}
    read = {s for v in stage.backward for s in problem.reads[v]}
    return Way(frozenset(own & (read | set(stage.result))), stage.backward)


def best_plan(
    problem: RematProblem,
    a: Arrays,
    budget: int | None,
    chain: Chain,
    ways: Sequence[Sequence[Way]],
    deadline: float,
) -> np.ndarray:
    """The fastest plan whose schedule fits, by bisection over memories; else the leanest."""
    order = np.arange(problem.count)
    length = len(chain.stages)
    if budget is None or length == 0 or not chain.stages[-1].forward:
        return order
    left = max(0.0, deadline - clock.monotonic())
    most = max(len(row) for row in ways)
    slots = min(
        MOST_SLOTS,
        2 * MOST_CELLS // (length * (length + 1)),
        int(min(4.0, 0.4 * left) * SPEED / (length**2 * (length / 6 + most / 2))),
    )
    if slots < 20:
        return order
    costs = costs_of(problem, a, chain, ways)
    plan = ChainPlan(costs, evaluate(a, order, 0)[1] - problem.resident_bytes, slots)
    memories = plan.memories()
    if not memories:
        return order

    def schedule(memory: int) -> tuple[int, int, np.ndarray]:
        sequence = expand(problem, chain, ways, plan, memory)
        total, peak, _ = evaluate(a, sequence, 0)
        return peak, total, sequence

    low, high, best = 0, len(memories), schedule(memories[0])
    # First where the plan's own count says that the budget lies: time may be short.
    guess = bisect_right(memories, (budget - problem.resident_bytes) // plan.unit) - 1
    probes = [guess - high // 8, guess - high // 32, guess]
    while low + 1 < high and clock.monotonic() < deadline:
        middle = probes.pop() if probes else (low + high) // 2
        if not low < middle < high:
            continue
        found = schedule(memories[middle])
        if found[0] <= budget:
            low = middle
            best = found if best[0] > budget or found[1] < best[1] else best
        else:
            high = middle
    return best[2]


def costs_of(
    problem: RematProblem, a: Arrays, chain: Chain, ways: Sequence[Sequence[Way]]
) -> ChainCosts:
    """Bytes and times of each stage and way, by replaying it alone."""
    length, most = len(chain.stages), max(len(row) for row in ways)
    size, time = np.array(problem.size, np.int64), a.op["time"]

    def total(storages: set[int] | frozenset[int] | tuple[int, ...]) -> int:
        return int(size[list(storages)].sum())

    kept = [
        {s for v in stage.backward for s in problem.writes[v] if s in problem.keep}
        for stage in chain.stages
    ]
    taken = _taken_over(problem, chain)
    forward, out, passing, made, gradient = (np.zeros(length, np.int64) for _ in range(5))
    saved, while_saving, while_backward, backward = (
        np.full((length, most), FOREVER, np.int64) for _ in range(4)
    )
    for i, stage in enumerate(chain.stages):
        again = [v for v in stage.forward if v not in chain.held]
        out[i], made[i], gradient[i] = total(stage.result), total(kept[i]), total(taken[i])
        passing[i] = local_peak(problem, again, (), stage.result)
        leaves = kept[i] | (taken[i - 1] if i else set())
        for k, way in enumerate(ways[i]):
            needed = made_for(problem, again, chain.held, way.saved)
            forward[i] = max(forward[i], time[list(needed)].sum())
            saved[i, k] = total(way.saved)
            while_saving[i, k] = local_peak(problem, again, (), way.saved)
            while_backward[i, k] = local_peak(
                problem, way.backward, way.saved | taken[i], leaves | set(stage.source)
            )
            backward[i, k] = time[list(way.backward)].sum()
    return ChainCosts(
        forward, out, passing, made, gradient, saved, while_saving, while_backward, backward
    )


def _taken_over(problem: RematProblem, chain: Chain) -> list[set[int]]:
    """For each stage the storages, other than kept ones, that later stages' backward runs leave
    for it or for those before it."""
    alive: set[int] = set()
    rows: list[set[int]] = []
    ahead = {v for stage in chain.stages for v in stage.forward}
    for stage in chain.stages:
        for v in reversed(stage.backward):
            alive.difference_update(problem.writes[v])
            alive.update(problem.reads[v])
        alive = {
            s
            for s in alive
            if problem.writer[s] >= 0 and problem.writer[s] not in ahead and s not in problem.keep
        }
        rows.append(set(alive))
    return rows


def expand(
    problem: RematProblem,
    chain: Chain,
    ways: Sequence[Sequence[Way]],
    plan: ChainPlan,
    memory: int,
) -> np.ndarray:
    """A plan as a sequence of operators; first runs stand in the given order."""
    sequence: list[int] = []
    begun: set[int] = set()
    for step in plan.steps(memory):
        stage = chain.stages[step.stage]
        if step.backward:
            sequence += ways[step.stage][step.way].backward
        elif step.stage not in begun:
            begun.add(step.stage)
            sequence += stage.forward
        else:
            wanted = stage.result if step.way < 0 else ways[step.stage][step.way].saved
            sequence += made_for(problem, stage.forward, chain.held, wanted)
    return np.array(sequence, np.int64)
