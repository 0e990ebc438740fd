"""Simulated annealing over schedules, a nogil kernel that several threads run at once.

The objective is ``alpha * total time + weight * bytes over the budget, summed over steps``.
"""

from __future__ import annotations

import numpy as np

from .apply import do_delete, do_insert, do_move
from .arrays import Arrays
from .block import do_block, try_block
from .chains import TRAIL, delete_chain, restore
from .jit import ZERO, entry, helper
from .moves import clear, try_delete, try_insert, try_move, window
from .state import LENGTH, OVER, TIME, State, last_use, run_after, run_before

# What is under trial, priced but not made.
NOTHING, MOVE, INSERT, DELETE, RERUNS = range(5)
# Entries of the record of a run.
BEST_TIME, BEST_LENGTH, FOUND, TRIED, RECORD = range(5)


@helper
def _crowded(a: Arrays, st: State, tries: int) -> int:
    """The step with most bytes among a few random ones."""
    best, most = 0, -1
    for _ in range(tries):
        x = np.random.randint(st.meta[LENGTH])
        during = st.step[x].gap + a.op[st.step[x].seq].extra - st.step[x].saved
        if during > most:
            best, most = x, during
    return best


@helper
def _relieve(a: Arrays, st: State) -> tuple[int, int]:
    """``(v, p)``: running ``v`` before ``p`` frees bytes at some crowded step; v = -1: none."""
    x = _crowded(a, st, 6)
    for _ in range(12 if len(a.storage) else 0):
        s = np.random.randint(len(a.storage))
        w = a.storage[s].writer
        if w < 0 or a.op[w].single or a.storage[s].size == 0:
            continue
        c = run_before(st, w, x)
        if c < 0:
            continue
        until = run_after(st, w, c)
        u = last_use(a, st, s, c, until)
        if u <= x or until <= x:
            continue
        first = st.meta[LENGTH]
        used = False
        for k in range(a.storage[s].readers_at, a.storage[s].readers_end):
            q = run_after(st, a.rows[k], x - 1)
            used = used or q == x
            first = min(first, q)
        if not used and first < st.meta[LENGTH]:
            return w, first
    return -1, 0


@helper
def _target(low: int, high: int, p: int) -> int:
    """A new place for step ``p`` in ``low .. high``: an end, nearby, or anywhere."""
    r = np.random.random()
    if r < 0.2:
        return low
    if r < 0.4:
        return high
    if r < 0.7:
        q = p + np.random.randint(-8, 9)
        return min(high, max(low, q))
    return np.random.randint(low, high + 1)


@helper
def _walk(
    a: Arrays,
    st: State,
    rounds: int,
    hot: float,
    cold: float,
    alpha: float,
    weight: float,
    heaviest: float,
    fixed: bool,
    stop_at_feasible: bool,
    best: np.ndarray,
    record: np.ndarray,
    out: np.ndarray,
    trail: np.ndarray,
) -> float:
    """`anneal`, its scratch space given."""
    temperature, inside = hot, 0
    for i in range(rounds):
        if i % 512 == 511:
            temperature = hot * (cold / hot) ** (i / rounds)
            if inside == 0:
                weight = min(heaviest, 1.05 * weight)
            elif inside > 256:
                weight *= 0.97
            inside = 0
        record[TRIED] += 1
        length = st.meta[LENGTH]
        time, over = st.meta[TIME], st.meta[OVER]
        kind = np.random.random()
        depth, trial = 0, NOTHING
        v = p = q = ZERO
        if kind < 0.40:
            p = np.random.randint(length)
            v = st.step[p].seq
            if fixed and st.runs[v, 0] == p:
                continue
            window(a, st, p, out)
            q = _target(out[0], out[1], p)
            if not try_move(a, st, p, q, out):
                continue
            trial = MOVE
        elif kind < 0.70:
            if kind < 0.55:
                v, p = _relieve(a, st)
                if v < 0:
                    continue
            else:
                p = np.random.randint(length)
                v = st.step[p].seq
                reads = a.op[v].reads_end - a.op[v].reads_at
                if reads == 0:
                    continue
                v = a.storage[a.rows[a.op[v].reads_at + np.random.randint(reads)]].writer
                if np.random.random() < 0.3:
                    c = run_before(st, v, p)
                    p = np.random.randint(c + 1, p + 1)
            if np.random.random() < 0.5:
                if not try_block(a, st, v, p, 0.9 * np.random.random() ** 3, out):
                    continue
                trial = RERUNS
            else:
                if (fixed or a.op[v].rank >= 0) and st.runs[v, 0] >= p:
                    continue
                if not try_insert(a, st, v, p, out):
                    continue
                trial = INSERT
        else:
            found = False
            for _ in range(12):
                p = np.random.randint(length)
                if st.ran[st.step[p].seq] > 1:
                    found = True
                    break
            if not found:
                continue
            if kind < 0.85:
                v = st.step[p].seq
                if fixed and st.runs[v, 0] == p:
                    continue
                if not try_delete(a, st, p, out):
                    continue
                trial = DELETE
            else:
                depth = delete_chain(a, st, p, fixed, trail, out)
                if depth == 0:
                    continue
                if kind > 0.93:
                    v, p = _relieve(a, st)
                    if v >= 0 and try_block(a, st, v, p, 0.9 * np.random.random() ** 3, out):
                        trial = RERUNS
        cost = alpha * (st.meta[TIME] - time) + weight * (st.meta[OVER] - over)
        if trial != NOTHING:
            cost += alpha * out[0] + weight * out[1]
        if cost <= 0 or np.random.random() < np.exp(-cost / temperature):
            if trial == MOVE:
                do_move(a, st, p, q, out)
            elif trial == INSERT:
                do_insert(a, st, v, p, out)
            elif trial == DELETE:
                do_delete(a, st, p, out)
            elif trial == RERUNS:
                do_block(a, st, p, out)
            if st.meta[OVER] == 0:
                inside += 1
                if record[BEST_TIME] < 0 or st.meta[TIME] < record[BEST_TIME]:
                    record[BEST_TIME], record[BEST_LENGTH] = st.meta[TIME], st.meta[LENGTH]
                    for x in range(st.meta[LENGTH]):
                        best[x] = st.step[x].seq
                    record[FOUND] += 1
                if stop_at_feasible:
                    return weight
        else:
            clear(st)
            restore(a, st, trail, depth, out)
            if st.meta[OVER] == 0:
                inside += 1
    return weight


@entry
def anneal(
    a: Arrays,
    st: State,
    rounds: int,
    hot: float,
    cold: float,
    alpha: float,
    weight: float,
    heaviest: float,
    seed: int,
    fixed: bool,
    stop_at_feasible: bool,
    best: np.ndarray,
    record: np.ndarray,
) -> float:
    """Search from the state's schedule; the state ends at the last schedule accepted.

    Parameters
    ----------
    rounds : int
        Moves to try.
    hot, cold : float
        First and last temperature, in units of the objective.
    weight, heaviest : float
        Price of a byte over the budget, and the most that it may become.
    fixed : bool
        First runs keep their order.
    best : int64[cap], updated
        Fastest schedule within the budget.
    record : int64[RECORD], updated
        Its time (-1: none yet) and length, and counts.

    Returns
    -------
    float
        The weight at the end; it rises while no schedule is within the budget and falls
        while all are.
    """
    np.random.seed(seed)
    out = np.zeros(2, np.int64)
    trail = np.zeros((TRAIL, 2), np.int64)
    return _walk(
        a, st, rounds, hot, cold, alpha, weight, heaviest, fixed, stop_at_feasible,
        best, record, out, trail,
    )  # fmt: skip
