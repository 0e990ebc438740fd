"""A full model for small graphs: which operator runs in which slot, and what is held between.

Slots stand in order and each runs at most one operator; with as many slots as runs, every
schedule is a solution, and the memory of each step is that of `check` to the byte. A schedule of
more runs than there are slots takes at least as long as all operators once and the shortest
reruns that fill the slots; where that passes the best answer, the answer is proved optimal, else
slots are added. After Checkmate (Jain et al., MLSys 2020) in what it decides; stages of one
operator, free order, and copies that die at their last read are ours.
"""

from __future__ import annotations

import math
import time as clock
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ortools.sat.python import cp_model

from .problem import RematProblem

# Operators times slots beyond which the model is not worth building.
LARGEST = 40_000
Literal = cp_model.IntVar
Table = list[list[Literal]]


@dataclass(frozen=True)
class ExactAnswer:
    """What the full model found.

    Attributes
    ----------
    sequence : tuple of int or None
        The fastest schedule within the budget; None: none known.
    bound : int
        No schedule within the budget takes less time.
    """

    sequence: tuple[int, ...] | None
    bound: int


def exact(
    problem: RematProblem,
    budget: int,
    known: tuple[int, ...] | None,
    bound: int,
    reorder: bool,
    seconds: float,
) -> ExactAnswer:
    """The optimal schedule, or the best one and a bound when time runs out.

    Parameters
    ----------
    problem : RematProblem
    budget : int
        Bytes, residents included.
    known : tuple of int or None
        A schedule within the budget to begin with.
    bound : int
        A valid lower bound on total time.
    reorder : bool
        If False, first runs keep the given order.
    seconds : float
        Time limit.
    """
    deadline = clock.monotonic() + seconds
    shortest = sorted(
        problem.time[v] for v in range(problem.count) if v not in problem.once and v != problem.turn
    )
    best = known
    slots = max(problem.count + 2, 0 if known is None else len(known))
    while True:
        left = deadline - clock.monotonic()
        if left < 0.02 or slots * problem.count > LARGEST:
            return ExactAnswer(best, bound)
        found, within = _solve(problem, budget, best, reorder, slots, left)
        if found is not None:
            best = found
        # Schedules of more runs than slots.
        beyond = problem.base_time + (slots + 1 - problem.count) * (shortest or [1 << 62])[0]
        bound = max(bound, min(within, beyond))
        if best is not None and bound >= sum(problem.time[v] for v in best):
            return ExactAnswer(best, bound)
        if within >= beyond and slots > 4 * problem.count + 8:
            return ExactAnswer(best, bound)
        slots += max(2, problem.count // 2)


def _solve(
    problem: RematProblem,
    budget: int,
    known: tuple[int, ...] | None,
    reorder: bool,
    slots: int,
    seconds: float,
) -> tuple[tuple[int, ...] | None, int]:
    """A better schedule of at most ``slots`` runs, if any, and the least time of such."""
    model = cp_model.CpModel()
    count, made_by = problem.count, problem.writer
    run = [[model.new_bool_var("") for _ in range(count)] for _ in range(slots)]
    stored = [s for s in range(len(problem.size)) if made_by[s] >= 0]
    held = [{s: model.new_bool_var("") for s in stored} for _ in range(slots + 1)]
    for s in stored:
        model.add(held[0][s] == 0)
    for s in problem.keep:
        if made_by[s] >= 0:
            model.add(held[slots][s] == 1)
    _order(model, problem, run, reorder)
    for t in range(slots):
        for v in range(count):
            for s in set(problem.reads[v]):
                if made_by[s] >= 0:
                    model.add_implication(run[t][v], held[t][s])
        for s in stored:
            model.add_bool_or([held[t][s], run[t][made_by[s]], ~held[t + 1][s]])
    saved = _overwritten(model, problem, run, held)
    for t in range(slots):
        model.add(
            sum(problem.size[s] * held[t][s] for s in stored)
            + sum(
                (problem.workspace[v] + sum(problem.size[s] for s in problem.writes[v])) * run[t][v]
                for v in range(count)
            )
            - saved[t]
            <= budget - problem.resident_bytes
        )
    total = sum(problem.time[v] * run[t][v] for t in range(slots) for v in range(count))
    model.minimize(total)
    if known is not None:
        model.add(total < sum(problem.time[v] for v in known))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        # None better than the known one; without one, none of so few runs.
        return None, 1 << 62 if known is None else sum(problem.time[v] for v in known)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        sequence = tuple(
            v for t in range(slots) for v in range(count) if solver.boolean_value(run[t][v])
        )
        return sequence, _whole(solver.best_objective_bound)
    return None, _whole(solver.best_objective_bound) if status != cp_model.MODEL_INVALID else 0


def _whole(bound: float) -> int:
    """The integer that went through a floating-point scale."""
    whole = round(bound)
    return whole if abs(bound - whole) <= 1e-9 + 1e-14 * abs(bound) else math.ceil(bound)


def _order(model: cp_model.CpModel, problem: RematProblem, run: Table, reorder: bool) -> None:
    """At most one run a slot, idle slots last, all run, first runs in order."""
    slots, count = len(run), problem.count
    ran = [[model.new_bool_var("") for _ in range(count)] for _ in range(slots + 1)]
    for t in range(slots):
        model.add_at_most_one(run[t])
        if t + 1 < slots:
            model.add(sum(run[t]) >= sum(run[t + 1]))
    for v in range(count):
        model.add(ran[0][v] == 0)
        for t in range(slots):
            model.add_implication(ran[t][v], ran[t + 1][v])
            model.add_implication(run[t][v], ran[t + 1][v])
            model.add_bool_or([ran[t][v], run[t][v], ~ran[t + 1][v]])
        runs = sum(run[t][v] for t in range(slots))
        model.add(runs == 1 if v in problem.once or v == problem.turn else runs >= 1)
    for rows in (problem.ordered, () if reorder else range(count)):
        for u, v in pairwise(rows):
            for t in range(slots):
                model.add_implication(run[t][v], ran[t][u])


def _overwritten(
    model: cp_model.CpModel,
    problem: RematProblem,
    run: Table,
    held: list[dict[int, Literal]],
) -> list[Any]:
    """Bytes saved in each slot by an operator that overwrites an input that dies there."""
    slots = len(run)
    savings: list[list[Any]] = [[] for _ in range(slots)]
    crossing: dict[int, list[Literal]] = {}

    def crosses(s: int) -> list[Literal]:
        """Was the copy held before each slot made before the turn, which has run since?"""
        if s not in crossing:
            row = [model.new_bool_var("") for _ in range(slots + 1)]
            w, turn = problem.writer[s], problem.turn
            for t in range(slots):
                for cause in (run[t][turn], row[t]) if turn is not None else (row[t],):
                    # Held on, not made anew.
                    model.add_bool_or([~cause, ~held[t + 1][s], run[t][w], row[t + 1]])
            crossing[s] = row
        return crossing[s]

    for v in range(problem.count):
        if not problem.writes[v]:
            continue
        gain = problem.size[problem.writes[v][0]]
        inputs = [
            s
            for s in dict.fromkeys(problem.reuse[v])
            if problem.writer[s] >= 0 and s in problem.reads[v] and problem.size[s] == gain
        ]
        if not inputs or gain == 0:
            continue
        for t in range(slots):
            chosen = []
            for s in inputs:
                dies = model.new_bool_var("")
                model.add_implication(dies, run[t][v])
                model.add_implication(dies, ~held[t + 1][s])
                model.add_implication(dies, ~crosses(s)[t])
                chosen.append(dies)
            model.add_at_most_one(chosen)
            savings[t].append(gain * sum(chosen))
    return [sum(row) for row in savings]
