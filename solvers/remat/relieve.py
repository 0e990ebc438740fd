"""Greedy reruns that bring a schedule's peak under the budget."""

from __future__ import annotations

import numpy as np

from .arrays import Arrays
from .chains import TRAIL, insert_chain, undo
from .jit import ZERO, entry
from .state import LENGTH, OVER, TIME, State, empty_state, last_use, load, run_after, run_before


@entry
def _greedy(a: Arrays, st: State, share: float, fixed: bool) -> None:
    trail = np.zeros((TRAIL + 1, 3), np.int64)
    out = np.zeros(2, np.int64)
    pick = np.zeros(2, np.int64)
    for _ in range(4 * len(a.op)):
        if st.meta[OVER] == 0 or st.meta[LENGTH] + 80 > len(st.step):
            return
        x = ZERO
        most = -1
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
            if until <= x or last_use(a, st, s, c, until) <= x:
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
