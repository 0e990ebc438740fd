"""Simple rules, each a sequence in one go: what the search is measured against."""

from __future__ import annotations

import numpy as np
from numba import njit

from .arrays import Arrays
from .bound import boundary_bound
from .chains import TRAIL, insert_chain, undo
from .evaluate import evaluate, timeline
from .mincut import Boundary
from .problem import RematProblem
from .schedule import on_demand
from .state import LENGTH, OVER, TIME, State, empty_state, last_use, load, run_after, run_before


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
    redo = redo & (order < pivot) & ~a.op["single"]
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


@njit(cache=True, nogil=True)
def _greedy(a: Arrays, st: State, share: float, fixed: bool) -> None:
    trail = np.zeros((TRAIL + 1, 4), np.int64)
    out = np.zeros(2, np.int64)
    pick = np.zeros(2, np.int64)
    for _ in range(4 * len(a.op)):
        if st.meta[OVER] == 0 or st.meta[LENGTH] + 80 > len(st.step):
            return
        x, most = 0, -1
        for p in range(st.meta[LENGTH]):
            during = st.step[p].gap + a.op[st.step[p].seq].extra - st.step[p].saved
            if during > most:
                x, most = p, during
        best = -1.0
        pick[0] = -1
        for s in range(len(a.storage)):
            w = a.storage[s].writer
            if w < 0 or a.op[w].single or a.storage[s].size == 0:
                continue
            c = run_before(st, w, x)
            if c < 0:
                continue
            until = run_after(st, w, c)
            if until <= x or last_use(a, st, s, c, until, -1) <= x:
                continue
            first = st.meta[LENGTH]
            for k in range(a.storage[s].readers_at, a.storage[s].readers_end):
                first = min(first, run_after(st, a.rows[k], x - 1))
            if first == x or first >= st.meta[LENGTH]:
                continue
            over, time = st.meta[OVER], st.meta[TIME]
            trail[TRAIL, 0] = 0
            depth = insert_chain(a, st, w, first, share, fixed, trail)
            if depth == 0:
                continue
            gained, spent = over - st.meta[OVER], st.meta[TIME] - time
            undo(a, st, trail, depth, out)
            if gained > 0 and gained / (spent + 1.0) > best:
                best = gained / (spent + 1.0)
                pick[0], pick[1] = w, first
        if pick[0] < 0:
            return
        trail[TRAIL, 0] = 0
        insert_chain(a, st, pick[0], pick[1], share, fixed, trail)


def relieve(
    a: Arrays, sequence: np.ndarray, budget: int, share: float, fixed: bool = False
) -> np.ndarray:
    """``sequence`` with reruns added where its peak is over ``budget``, best ratio first."""
    state = empty_state(a, 4 * len(a.op) + 100)
    load(a, state, sequence, budget)
    _greedy(a, state, share, fixed)
    return state.step["seq"][: state.meta[LENGTH]].copy()


def greedy(problem: RematProblem, a: Arrays, budget: int | None) -> np.ndarray:
    """While the peak is over budget, make the rerun that frees most bytes per second."""
    order = np.arange(problem.count)
    if budget is None:
        return order
    found = [relieve(a, order, budget, share) for share in (1.0, 0.0)]

    def rank(sequence: np.ndarray) -> tuple[int, int]:
        total, _, over = evaluate(a, sequence, budget)
        return over, total

    return min(found, key=rank)
