"""Greedy reruns that bring a schedule's peak under the budget."""

from __future__ import annotations

import math
import time as clock

import numpy as np

from .arrays import Arrays
from .block import do_block, try_block
from .jit import MINUS_ONE, ZERO, entry, helper
from .moves import clear
from .state import LENGTH, OVER, State, empty_state, last_use, load, run_after, run_before

MOST_TRIALS = 200_000  # about a second
ROUNDS = 4  # insertions between two looks at the clock


@helper
def _greedy(
    a: Arrays, st: State, share: float, rounds: int, out: np.ndarray, pick: np.ndarray
) -> int:
    """Up to ``rounds`` insertions; the trials that they took, or -1 at the end."""
    trials = ZERO
    for _ in range(rounds):
        if st.meta[OVER] == 0 or st.meta[LENGTH] + 80 > len(st.step):
            return MINUS_ONE
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
            trials += 1
            if not try_block(a, st, w, first, share, out):
                continue
            clear(st)
            if out[1] < 0 and -out[1] / (out[0] + 1.0) > best:
                best = -out[1] / (out[0] + 1.0)
                pick[0], pick[1] = w, first
        if pick[0] < 0 or not try_block(a, st, pick[0], pick[1], share, out):
            return MINUS_ONE
        do_block(a, st, pick[1], out)
    return trials


@entry
def _run(a: Arrays, st: State, share: float, rounds: int) -> int:
    return _greedy(a, st, share, rounds, np.zeros(2, np.int64), np.zeros(2, np.int64))


def relieve(
    a: Arrays, sequence: np.ndarray, budget: int, share: float, deadline: float = math.inf
) -> np.ndarray:
    """``sequence`` with reruns added where its peak is over ``budget``, best ratio first.

    On large graphs, and at the ``deadline`` by `time.monotonic`, it may end before that.
    """
    state = empty_state(a, 4 * len(a.op) + 100)
    load(a, state, sequence, budget)
    done = 0
    for _ in range(len(a.op)):
        trials = _run(a, state, share, ROUNDS)
        done += trials
        if trials < 0 or done > MOST_TRIALS or clock.monotonic() > deadline:
            break
    return state.step["seq"][: state.meta[LENGTH]].copy()
