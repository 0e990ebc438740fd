"""A schedule of the reduced problem made exact: transfers placed, useless ones taken back.

The reduction prices each load alike. Where a value is wanted back before it could be gone, the
processor would wait: such a value is better kept, if its bytes fit.
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from dataclasses import replace

from .check import check
from .place import place
from .problem import Action, TransferProblem
from .skeleton import Copy, Skeleton, measure
from .solution import Replay

Placed = tuple[tuple[Action, ...], Replay]


def refine(
    problem: TransferProblem,
    plan: Skeleton,
    tier: Mapping[int, int],
    budget: int,
    deadline: float,
) -> tuple[Skeleton, Placed]:
    """The plan with fewer transfers, where that is faster, and its schedule.

    Parameters
    ----------
    problem : TransferProblem
    plan : Skeleton
    tier : mapping from storage to int
    budget : int
        Bytes.
    deadline : float
        By `time.monotonic`.
    """
    best = best_placed(problem, plan, tier, budget)
    tried: set[tuple[int, int]] = set()
    while best[1].stall and clock.monotonic() < deadline:
        waits = stalls(best)
        loads = [c for c in plan.copies if c.loaded and (c.storage, c.made) not in tried]
        loads.sort(key=lambda c: (-waits.get(c.storage, 0), c.made, c.storage))
        for copy in loads:
            if not waits.get(copy.storage) or clock.monotonic() > deadline:
                return plan, best
            tried.add((copy.storage, copy.made))
            kept = keep(problem, plan, copy)
            if int(kept.during.max(initial=0)) > budget:
                continue
            found = best_placed(problem, kept, tier, budget)
            if found[1].makespan < best[1].makespan:
                plan, best = kept, found
                break
        else:
            return plan, best
    return plan, best


def best_placed(
    problem: TransferProblem, plan: Skeleton, tier: Mapping[int, int], budget: int
) -> Placed:
    """The faster of `place`'s two orders."""
    found = []
    for outs_first in (True, False):
        actions = place(problem, plan, tier, budget, outs_first)
        found.append((actions, check(problem, actions)))
    return min(found, key=lambda placed: (placed[1].peak > budget, placed[1].makespan))


def keep(problem: TransferProblem, plan: Skeleton, load: Copy) -> Skeleton:
    """The plan in which the copy before ``load`` serves its readers too."""
    before = None
    copies: list[Copy] = []
    for copy in plan.copies:
        if copy is load:
            assert before is not None
            copies[before] = replace(copies[before], reads=[*copies[before].reads, *load.reads])
            continue
        if copy.storage == load.storage:
            before = len(copies)
        copies.append(copy)
    return measure(problem.remat, plan.runs, tuple(copies))


def stalls(placed: Placed) -> dict[int, int]:
    """Time that the processor waits for each storage."""
    waits: dict[int, int] = {}
    actions, replay = placed
    for action, start, end in zip(actions, replay.starts, replay.ends, strict=True):
        if end > start and action.kind.endswith("_done"):
            waits[action.index] = waits.get(action.index, 0) + end - start
    return waits
