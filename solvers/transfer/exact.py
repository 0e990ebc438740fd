"""One model for small problems that decides all together: what runs, what moves, in which order.

Slots stand in order and each holds at most one action; with as many slots as actions every
schedule is a solution, and its bytes and times are those of `check`. How a link serves in order
is told by three integers a slot: when the processor gets there, when the link is free, and when
each transfer on its way arrives. A schedule of more actions than slots runs more operators again,
or copies more in, which takes its time: past the best answer, that answer is proved optimal.
After the model of `fxmem.solvers.remat.exact`.
"""

from __future__ import annotations

import math
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from .model import Model
from .problem import Action, TransferProblem

LARGEST = 4000  # slots times kinds of actions beyond which the model is not worth building


def small(problem: TransferProblem) -> bool:
    """Is the model worth building for a schedule that moves a thing or two?"""
    return (problem.remat.count + 8) * _kinds(problem) <= LARGEST // 2


def _kinds(problem: TransferProblem) -> int:
    return problem.remat.count + 4 * len(problem.movable) * len(problem.tiers)


@dataclass(frozen=True)
class ExactAnswer:
    """What the model found.

    Attributes
    ----------
    actions : tuple of Action or None
        The fastest schedule within the budget; None: none known.
    bound : int
        No schedule within the budget has a smaller makespan.
    """

    actions: tuple[Action, ...] | None
    bound: int


def exact(
    problem: TransferProblem,
    budget: int,
    known: Sequence[Action] | None = None,
    makespan: int = 0,
    bound: int = 0,
    seconds: float = 60.0,
) -> ExactAnswer:
    """The optimal schedule, or the best one and a bound when time runs out.

    Parameters
    ----------
    problem : TransferProblem
    budget : int
        Bytes, residents included.
    known : sequence of Action, optional
        A schedule within the budget to begin with, and its ``makespan``.
    bound : int
        A valid lower bound.
    seconds : float
        Time limit.
    """
    deadline = clock.monotonic() + seconds
    best = None if known is None else tuple(known)
    bound = max(bound, problem.remat.base_time)
    kinds = _kinds(problem)
    slots = max(problem.remat.count + 4, 0 if best is None else len(best))
    while best is None or bound < makespan:
        left = deadline - clock.monotonic()
        if left < 0.02 or slots * kinds > LARGEST:
            break
        limit = None if best is None else makespan
        found, value, within = _solve(problem, budget, slots, limit, left)
        if found is not None:
            best, makespan = found, value
        bound = max(bound, min(within, _beyond(problem, slots)))
        slots += 4
    return ExactAnswer(best, bound)


def _solve(
    problem: TransferProblem, budget: int, slots: int, below: int | None, seconds: float
) -> tuple[tuple[Action, ...] | None, int, int]:
    """A schedule of at most ``slots`` actions, its makespan, and the least of such."""
    model = Model(problem, budget, slots, below)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    status = solver.solve(model.model)
    if status == cp_model.INFEASIBLE:
        return None, 0, 1 << 62 if below is None else below
    if status == cp_model.MODEL_INVALID:
        return None, 0, 0
    whole = round(solver.best_objective_bound)
    close = abs(solver.best_objective_bound - whole) <= 1e-6
    within = whole if close else math.ceil(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, 0, within
    return model.read(solver), int(solver.value(model.makespan)), within


def _beyond(problem: TransferProblem, slots: int) -> int:
    """No schedule of more actions than ``slots`` takes less time than this.

    Runs beyond the first of each operator take the processor, copies in take their link, and
    each storage goes out to each tier once.
    """
    remat = problem.remat
    free = [v for v in range(remat.count) if v not in remat.once and v != remat.turn]
    rerun = min((remat.time[v] for v in free), default=1 << 62)
    sizes = [remat.size[s] for s in problem.movable]
    load = min((t.read_time(s) for t in problem.tiers for s in sizes), default=1 << 62)
    more = slots + 1 - remat.count - 2 * len(sizes) * len(problem.tiers)
    if more <= 0:
        return 0
    least = 1 << 62
    for loads in range(more // 2 + 2):
        reruns = max(0, more - 2 * loads)
        on_link = -(-loads // max(1, len(problem.tiers))) * load if loads else 0
        least = min(least, max(remat.base_time + reruns * rerun, on_link))
    return least
