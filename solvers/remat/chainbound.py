"""A lower bound from several pivots at once: a linear program over coarse intervals.

Let operators ``x_1, ..., x_K`` each be an ancestor of the next, so that their first runs stand
in this order in every schedule and cut time into intervals 0 .. K. In any schedule within the
budget, with ``R[j, v]`` the runs of ``v`` in interval ``j`` and ``S[k, s]`` whether a copy of
``s`` is alive across the first run of ``x_k``:

* what has to precede ``x_k`` runs in an earlier interval, what follows it in none;
* a run in interval ``j`` finds each input alive at its beginning or made in it;
* what is alive across ``x_k`` was alive across ``x_{k-1}`` or made in between;
* what runs at all after ``x_k`` (``later``, at most 1) finds each input alive across ``x_k`` or
  made after it: implied for whole numbers, but without it fractions spread over intervals;
* the bytes alive across ``x_k`` fit beside what ``x_k`` itself takes.

Relaxed to fractions and solved by OR-Tools' GLOP, least time bounds every schedule. With one
pivot this is the boundary problem of `bound`; Checkmate's model is the case of every operator
a pivot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortools.linear_solver import pywraplp

from .mincut import Boundary
from .problem import RematProblem


def chain_bound(
    problem: RematProblem,
    boundaries: list[Boundary],
    budget: int,
    seconds: float,
    started: Callable[[Any], None] | None = None,
) -> int:
    """Least total time by the linear program; 0 if it is not solved (in time).

    Parameters
    ----------
    problem : RematProblem
    boundaries : list of Boundary
        Around the pivots, each an ancestor of the next.
    budget : int
        Bytes.
    seconds : float
        Time limit of the linear solver.
    started : callable, optional
        Given the linear solver before it begins, for its ``InterruptSolve``.
    """
    solver = pywraplp.Solver.CreateSolver("GLOP")
    solver.set_time_limit(max(1, int(1000 * seconds)))
    last, one = len(boundaries), 1.0
    scale = max(1.0, problem.base_time / 1e4)  # times near 1 suit the solver
    runs: list[dict[int, pywraplp.Variable]] = []
    for j in range(last + 1):
        row = {}
        for v in range(problem.count):
            late = j < last and boundaries[j].after[v]
            again = j > 0 and boundaries[j - 1].before[v]
            if late or (again and (v in problem.once or v == problem.turn)):
                continue
            row[v] = solver.NumVar(0, solver.infinity(), "")
        runs.append(row)
    alive: list[dict[int, pywraplp.Variable]] = [{}]
    for k, boundary in enumerate(boundaries):
        row = {}
        room = solver.Constraint(-solver.infinity(), boundary.capacity(budget) / 1024)
        for s, size in enumerate(problem.size):
            w = problem.writer[s]
            if w < 0 or boundary.after[w]:
                continue
            free = boundary.paid[s] or w == boundary.pivot
            row[s] = solver.NumVar(0, 1, "")
            if not free:
                room.SetCoefficient(row[s], size / 1024)
            # Alive before, or made since.
            made = solver.Constraint(-solver.infinity(), 0)
            made.SetCoefficient(row[s], one)
            if s in alive[k]:
                made.SetCoefficient(alive[k][s], -one)
            if w in runs[k]:
                made.SetCoefficient(runs[k][w], -one)
        alive.append(row)
    objective = solver.Objective()
    objective.SetMinimization()
    for v in range(problem.count):
        due = next((k for k, b in enumerate(boundaries) if b.before[v]), last)
        must = solver.Constraint(1, solver.infinity())
        for j in range(last + 1):
            if v in runs[j]:
                objective.SetCoefficient(runs[j][v], problem.time[v] / scale)
                if j <= due:
                    must.SetCoefficient(runs[j][v], one)
                for s in set(problem.reads[v]):
                    w = problem.writer[s]
                    if w < 0:
                        continue
                    found = solver.Constraint(0, solver.infinity())
                    found.SetCoefficient(runs[j][v], -one)
                    if s in alive[j]:
                        found.SetCoefficient(alive[j][s], one)
                    if w in runs[j]:
                        found.SetCoefficient(runs[j][w], one)
    for k, boundary in enumerate(boundaries):
        later = [solver.NumVar(0, 1, "") for _ in range(problem.count)]
        for v in range(problem.count):
            if boundary.after[v]:
                later[v].SetLb(1)
            total = solver.Constraint(0, solver.infinity())
            total.SetCoefficient(later[v], -one)
            for j in range(k + 1, last + 1):
                if v in runs[j]:
                    total.SetCoefficient(runs[j][v], one)
        wanted = [(later[v], s) for v in range(problem.count) for s in set(problem.reads[v])]
        for reader, s in [*wanted, *((None, s) for s in problem.keep)]:
            w = problem.writer[s]
            if w < 0 or boundary.after[w]:
                continue
            found = solver.Constraint(0 if reader else 1, solver.infinity())
            found.SetCoefficient(alive[k + 1][s], one)
            found.SetCoefficient(later[w], one)
            if reader:
                found.SetCoefficient(reader, -one)
    for s in problem.keep:
        w = problem.writer[s]
        if w >= 0:
            held = solver.Constraint(1, solver.infinity())
            for table, key in ((alive[last], s), (runs[last], w)):
                if key in table:
                    held.SetCoefficient(table[key], one)
    if started is not None:
        started(solver)
    status = solver.Solve()
    if status != pywraplp.Solver.OPTIMAL:
        return 0
    # GLOP works to 1e-6 a constraint in floating point: give more than that away. For the
    # same reason its word that nothing fits is not taken as a proof.
    return int(objective.Value() * scale * (1 - 2e-5))
