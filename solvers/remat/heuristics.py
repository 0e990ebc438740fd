"""Simple rules, each a sequence in one go: what the search is measured against."""

from __future__ import annotations

import time as clock

import numpy as np

from .arrays import Arrays
from .bound import boundary_bound
from .evaluate import evaluate, timeline
from .mincut import Boundary
from .problem import RematProblem
from .relieve import relieve
from .schedule import on_demand


def none(problem: RematProblem, a: Arrays, budget: int | None) -> np.ndarray:
    """Keep everything: the given order."""
    return np.arange(problem.count)


def pivot_of(problem: RematProblem, a: Arrays) -> int:
    """The turn, or the operator at the peak of the given order where there is none."""
    if problem.turn is not None:
        return problem.turn
    order = np.arange(problem.count)
    gap, saved = np.empty(len(order) + 1, np.int64), np.empty(len(order), np.int64)
    timeline(a, order, gap, saved)
    return int(np.argmax(gap[:-1] + a.op["extra"] - saved))


def _rerun(problem: RematProblem, a: Arrays, pivot: int, redo: np.ndarray) -> np.ndarray:
    order = np.arange(problem.count)
    redo = redo & (order < pivot) & (a.op["single"] == 0)
    return on_demand(a, order, pivot, redo, np.zeros(problem.count, np.bool_))


def everything(problem: RematProblem, a: Arrays, budget: int | None) -> np.ndarray:
    """``all``: recompute whatever may be recomputed."""
    pivot = pivot_of(problem, a)
    return _rerun(problem, a, pivot, np.ones(problem.count, np.bool_))


def sqrt(problem: RematProblem, a: Arrays, budget: int | None) -> np.ndarray:
    """Segments of sqrt(n) operators; keep what leaves a segment (Chen et al., 2016)."""
    pivot = pivot_of(problem, a)
    segments = max(1, int(np.sqrt(pivot + 1)))
    segment = np.arange(problem.count) * segments // max(1, pivot + 1)
    redo = np.ones(problem.count, np.bool_)
    for v in range(pivot):
        for s in problem.writes[v]:
            for r in a.rows[a.storage["readers_at"][s] : a.storage["readers_end"][s]]:
                if r <= pivot and segment[r] != segment[v]:
                    redo[v] = False
    return _rerun(problem, a, pivot, redo)


def mincut(problem: RematProblem, a: Arrays, budget: int | None) -> np.ndarray:
    """The best choice at the turn alone, recomputed on demand."""
    pivot = pivot_of(problem, a)
    boundary = Boundary(problem, pivot)
    if budget is None:
        budget = problem.resident_bytes
    result = boundary_bound(boundary, budget)
    cut = result.light or result.heavy
    redo = cut.redo if cut else np.ones(problem.count, np.bool_)
    return _rerun(problem, a, pivot, redo)


def greedy(problem: RematProblem, a: Arrays, budget: int | None, deadline: float) -> np.ndarray:
    """While the peak is over budget, make the rerun that frees most bytes per second."""
    order = np.arange(problem.count)
    if budget is None:
        return order
    found = [relieve(a, order, budget, 1.0, deadline)]
    if clock.monotonic() < deadline:
        found.append(relieve(a, order, budget, 0.0, deadline))

    def rank(sequence: np.ndarray) -> tuple[int, int]:
        total, _, over = evaluate(a, sequence, budget)
        return over, total

    return min(found, key=rank)
