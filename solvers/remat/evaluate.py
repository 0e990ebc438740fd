"""Exact replay of a schedule under numba: the solvers' own copy of `check.replay`.

`check` stays the judge; tests hold the two equal on random schedules.
"""

from __future__ import annotations

import numpy as np

from .arrays import Arrays
from .jit import allocating, entry


@allocating
def free_inputs(a: Arrays, seq: np.ndarray) -> np.ndarray:
    """Bit ``k`` of entry ``p``: the ``k``-th reusable input of step ``p`` may be overwritten
    as far as the turn is concerned (it was not made before the turn and read after it).
    """
    free = np.empty(len(seq), np.int64)
    late = np.zeros(len(a.storage), np.bool_)
    passed = False
    for p in range(len(seq)):
        v = seq[p]
        free[p] = -1
        if passed:
            for k in range(a.op[v].reuse_at, a.op[v].reuse_end):
                if not late[a.rows[k]]:
                    free[p] &= ~(1 << (k - a.op[v].reuse_at))
        passed = passed or v == a.turn
        if passed:
            for k in range(a.op[v].writes_at, a.op[v].writes_end):
                late[a.rows[k]] = True
    return free


@entry
def timeline(a: Arrays, seq: np.ndarray, gap: np.ndarray, saved: np.ndarray) -> bool:
    """Bytes around each step of ``seq``, in one pass from its end.

    Parameters
    ----------
    a : Arrays
    seq : int64[L]
        A schedule.
    gap : int64[L + 1], written
        ``gap[p]``: bytes alive just before step ``p``; ``gap[L]``: alive at the end.
    saved : int64[L], written
        Bytes that step ``p`` saves by overwriting an input.

    Returns
    -------
    bool
        False where a step reads a storage that was never written. During step ``p`` of
        operator ``v``, ``gap[p] + extra[v] - saved[p]`` bytes are alive.
    """
    free = free_inputs(a, seq)
    # Is the copy that is current here read (or kept) later on?
    needed = np.zeros(len(a.storage), np.bool_)
    alive = a.resident
    for s in range(len(needed)):
        if a.storage[s].keep:
            needed[s] = True
            alive += a.storage[s].size
    gap[len(seq)] = alive
    for p in range(len(seq) - 1, -1, -1):
        v = seq[p]
        for k in range(a.op[v].writes_at, a.op[v].writes_end):
            s = a.rows[k]
            if needed[s]:
                needed[s] = False
                alive -= a.storage[s].size
        saved[p] = 0
        for k in range(a.op[v].reuse_at, a.op[v].reuse_end):
            if not needed[a.rows[k]] and (free[p] >> (k - a.op[v].reuse_at)) & 1:
                saved[p] = a.op[v].gain
        for k in range(a.op[v].reads_at, a.op[v].reads_end):
            s = a.rows[k]
            if not needed[s]:
                needed[s] = True
                alive += a.storage[s].size
        gap[p] = alive
    unmade = 0
    for s in range(len(needed)):
        unmade += needed[s]
    return unmade == 0


@entry
def evaluate(a: Arrays, seq: np.ndarray, budget: int) -> tuple[int, int, int]:
    """``(total time, peak, bytes over the budget summed over steps)``; time -1: invalid.

    ``once`` and ``ordered`` are not looked at.
    """
    gap = np.empty(len(seq) + 1, np.int64)
    saved = np.empty(len(seq), np.int64)
    if not timeline(a, seq, gap, saved):
        return -1, 0, 0
    total, peak, over = 0, a.resident, 0
    for p in range(len(seq)):
        during = gap[p] + a.op[seq[p]].extra - saved[p]
        total += a.op[seq[p]].time
        peak = max(peak, during)
        over += max(0, during - budget)
    return total, peak, over
