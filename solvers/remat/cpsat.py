"""``cpsat``: CP-SAT on the retention intervals of `intervals`, from a greedy start."""

from __future__ import annotations

import time as clock

import numpy as np
from ortools.sat.python import cp_model

from .arrays import Arrays
from .evaluate import evaluate
from .heuristics import greedy
from .intervals import Intervals
from .problem import RematProblem

LARGEST = 2000  # operators; beyond that, building and presolve take longer than they pay


def cpsat(problem: RematProblem, a: Arrays, budget: int | None, deadline: float) -> np.ndarray:
    """Bartan et al., "MOCCASIN" (ICML 2023): least peak first, hinted into least time.

    The first phase is left out where ``greedy`` fits, and ends at the budget. The model keeps
    the given order, and at most two runs of each operator: its optimum is not that of the
    problem, and nothing is taken from it as proved.
    """
    now = clock.monotonic()
    best = greedy(problem, a, budget, now + 0.3 * (deadline - now))
    if budget is None or problem.count == 0 or clock.monotonic() > deadline:
        return best
    best = _better(a, budget, best, _staged(problem, best))
    room = budget - problem.resident_bytes
    if problem.count > LARGEST or room < 0:
        return best
    intervals = Intervals(problem)
    if evaluate(a, best, budget)[2] > 0:
        intervals.model.add(intervals.capacity >= room)
        intervals.model.minimize(intervals.capacity)
        left = deadline - clock.monotonic()
        best = _better(a, budget, best, _solve(intervals, best, 0.8 * left))
        if evaluate(a, best, budget)[2] > 0:
            return best
    intervals.model.add(intervals.capacity <= room)
    intervals.model.minimize(intervals.time)
    return _better(a, budget, best, _solve(intervals, best, deadline - clock.monotonic()))


def _solve(intervals: Intervals, start: np.ndarray, seconds: float) -> np.ndarray:
    """The best schedule found, else ``start``."""
    if seconds < 0.02:
        return start
    intervals.hint(start.tolist())
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    if solver.solve(intervals.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return np.array(intervals.schedule(solver), np.int64)
    return start


def _staged(problem: RematProblem, sequence: np.ndarray) -> np.ndarray:
    """``sequence`` with the reruns between two first runs in ascending order, each once."""
    staged: list[int] = []
    begun, again = -1, set[int]()
    for v in sequence.tolist():
        if v > begun:
            staged += [*sorted(again), v]
            begun, again = v, set()
        else:
            again.add(v)
    return np.array(staged, np.int64)


def _better(a: Arrays, budget: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The faster one within the budget, else the one of lower peak."""

    def rank(sequence: np.ndarray) -> tuple[int, int]:
        total, peak, _ = evaluate(a, sequence, budget)
        return max(0, peak - budget), total

    return min(first, second, key=rank)
