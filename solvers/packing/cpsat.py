"""CP-SAT: rectangles of given place in time that must not overlap. Proofs for small problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from .arrays import Buffers


@dataclass(frozen=True)
class CpsatAnswer:
    """What the model found.

    Attributes
    ----------
    placed : int64[n] or None
        Offsets in units; None: none known.
    bound : int
        No arena of fewer bytes exists.
    infeasible : bool
        Proved: none fits the capacity.
    """

    placed: np.ndarray | None
    bound: int
    infeasible: bool


def cpsat(
    buffers: Buffers,
    capacity: int,
    minimise: bool,
    seconds: float,
    threads: int = 2,
    seed: int = 0,
) -> CpsatAnswer:
    """A packing within ``capacity`` bytes, or the lowest one.

    Parameters
    ----------
    buffers : Buffers
    capacity : int
        Bytes.
    minimise : bool
        The lowest, not just any.
    seconds : float
        Time limit.
    threads, seed : int
    """
    model = cp_model.CpModel()
    problem, limit = buffers.problem, buffers.limit(capacity)
    bound = problem.lower_bound
    if capacity < bound or (limit < buffers.size).any():
        return CpsatAnswer(None, max(bound, capacity + 1), True)
    height = model.new_int_var(bound, capacity, "height")
    offset, times, ranges = [], [], []
    for i, number in enumerate(buffers.index):
        size, life = int(buffers.size[i]), int(buffers.upper[i] - buffers.lower[i])
        at = model.new_int_var(0, int(limit[i]) - size, f"offset_{number}")
        offset.append(at)
        times.append(model.new_fixed_size_interval_var(int(buffers.lower[i]), life, ""))
        ranges.append(model.new_fixed_size_interval_var(at, size, ""))
        if minimise:
            model.add(height >= buffers.unit * at + problem.size[number])
    for i, fixed in enumerate(problem.offsets_given):
        if fixed >= 0 and problem.size[i]:
            size = -(-problem.size[i] // problem.alignment) * problem.alignment
            life = problem.upper[i] - problem.lower[i]
            times.append(model.new_fixed_size_interval_var(problem.lower[i], life, ""))
            ranges.append(
                model.new_fixed_size_interval_var(fixed // buffers.unit, size // buffers.unit, "")
            )
    model.add_no_overlap_2d(times, ranges)
    if minimise:
        model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.0, seconds)
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return CpsatAnswer(None, capacity + 1, True)
    if minimise:
        bound = max(bound, round(solver.best_objective_bound))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return CpsatAnswer(None, bound, False)
    return CpsatAnswer(np.array([solver.value(at) for at in offset], np.int64), bound, False)
