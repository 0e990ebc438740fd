"""The lower bound of `chainbound` in whole numbers, by CP-SAT.

Fractions let a value be half saved and half recomputed; where few values matter, whole numbers
close most of the gap that this leaves, and often prove a schedule optimal. A run of an operator
in an interval is a Boolean, so two runs in one interval cost one: still a bound. All numbers
are integers, so the solver's bound is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ortools.sat.python import cp_model

from .mincut import Boundary
from .problem import RematProblem


def integer_bound(
    problem: RematProblem,
    boundaries: list[Boundary],
    budget: int,
    seconds: float,
    known: int | None = None,
    started: Callable[[cp_model.CpSolver], None] | None = None,
) -> int:
    """A lower bound on the total time of any schedule within ``budget``.

    Parameters
    ----------
    problem : RematProblem
    boundaries : list of Boundary
        Around the pivots, each an ancestor of the next.
    budget : int
        Bytes.
    seconds : float
        Time limit; the bound found until then is valid.
    known : int, optional
        Time of a schedule within the budget: more than that need not be proved.
    started : callable, optional
        Given the solver before it begins, for its ``stop_search``.

    Returns
    -------
    int
        The bound; ``problem.base_time`` where nothing better is known.
    """
    model = cp_model.CpModel()
    runs = _runs(model, problem, boundaries)
    alive = _alive(model, problem, boundaries, budget, runs)
    last = len(boundaries)
    for v in range(problem.count):
        due = next((k for k, b in enumerate(boundaries) if b.before[v]), last)
        model.add_bool_or([runs[j][v] for j in range(due + 1) if v in runs[j]])
        for j in range(last + 1):
            if v not in runs[j]:
                continue
            for s in set(problem.reads[v]):
                w = problem.writer[s]
                if w >= 0:
                    found = [t[k] for t, k in ((alive[j], s), (runs[j], w)) if k in t]
                    model.add_bool_or([*found, ~runs[j][v]])
    for s in problem.keep:
        w = problem.writer[s]
        if w >= 0:
            model.add_bool_or([t[k] for t, k in ((alive[last], s), (runs[last], w)) if k in t])
    total = sum(problem.time[v] * run for row in runs for v, run in row.items() if problem.time[v])
    model.minimize(total)
    if known is not None:
        model.add(total < known)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    solver.parameters.num_workers = 1
    if started is not None:
        started(solver)
    status = solver.solve(model)
    if status == cp_model.MODEL_INVALID:  # numbers that leave 64 bits
        return problem.base_time
    if status == cp_model.INFEASIBLE:
        return problem.base_time if known is None else known
    # An integer that went through a floating-point scale.
    bound = solver.best_objective_bound
    whole = round(bound)
    close = abs(bound - whole) <= 1e-9 + 1e-14 * abs(bound)
    return max(problem.base_time, whole if close else math.ceil(bound))


def _runs(
    model: cp_model.CpModel, problem: RematProblem, boundaries: list[Boundary]
) -> list[dict[int, cp_model.IntVar]]:
    """Does an operator run in an interval? What must not has no variable."""
    last = len(boundaries)
    rows = []
    for j in range(last + 1):
        row = {}
        for v in range(problem.count):
            late = j < last and boundaries[j].after[v]
            again = j > 0 and boundaries[j - 1].before[v]
            if not (late or (again and (v in problem.once or v == problem.turn))):
                row[v] = model.new_bool_var("")
        rows.append(row)
    return rows


def _alive(
    model: cp_model.CpModel,
    problem: RematProblem,
    boundaries: list[Boundary],
    budget: int,
    runs: list[dict[int, cp_model.IntVar]],
) -> list[dict[int, cp_model.IntVar]]:
    """Is a storage alive across a pivot, within the budget? The first row is before any."""
    rows: list[dict[int, cp_model.IntVar]] = [{}]
    for k, boundary in enumerate(boundaries):
        row = {}
        for s in range(len(problem.size)):
            w = problem.writer[s]
            if w < 0 or boundary.after[w]:
                continue
            row[s] = model.new_bool_var("")
            made = [t[i] for t, i in ((rows[k], s), (runs[k], w)) if i in t]
            model.add_bool_or([*made, ~row[s]])
        model.add(
            sum(
                problem.size[s] * held
                for s, held in row.items()
                if not boundary.paid[s] and problem.writer[s] != boundary.pivot and problem.size[s]
            )
            <= boundary.capacity(budget)
        )
        rows.append(row)
    return rows
