"""Exact replay of a schedule under numba: the solvers' own copy of `check.replay`.

`check` stays the judge; tests hold the two equal on random schedules.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .arrays import Arrays


@njit(cache=True, nogil=True)
def free_inputs(a: Arrays, seq: np.ndarray) -> np.ndarray:
    """Bit ``k`` of entry ``p``: the ``k``-th reusable input of step ``p`` may be overwritten
    as far as the turn is concerned (it was not made before the turn and read after it).
    """
    free = np.full(len(seq), -1, np.int64)
    late = np.zeros(len(a.size), np.bool_)
    passed = False
    for p in range(len(seq)):
        v = seq[p]
        if passed:
            for k in range(a.reuse_at[v], a.reuse_at[v + 1]):
                if not late[a.reuse[k]]:
                    free[p] &= ~(1 << (k - a.reuse_at[v]))
        passed = passed or v == a.turn
        if passed:
            for k in range(a.writes_at[v], a.writes_at[v + 1]):
                late[a.writes[k]] = True
    return free


@njit(cache=True, nogil=True)
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
    needed = a.keep.copy()  # is the copy that is current here read (or kept) later on?
    alive = a.resident
    for s in range(len(needed)):
        if needed[s]:
            alive += a.size[s]
    gap[len(seq)] = alive
    for p in range(len(seq) - 1, -1, -1):
        v = seq[p]
        for k in range(a.writes_at[v], a.writes_at[v + 1]):
            s = a.writes[k]
            if needed[s]:
                needed[s] = False
                alive -= a.size[s]
        saved[p] = 0
        for k in range(a.reuse_at[v], a.reuse_at[v + 1]):
            if not needed[a.reuse[k]] and (free[p] >> (k - a.reuse_at[v])) & 1:
                saved[p] = a.gain[v]
        for k in range(a.reads_at[v], a.reads_at[v + 1]):
            s = a.reads[k]
            if not needed[s]:
                needed[s] = True
                alive += a.size[s]
        gap[p] = alive
    return not needed.any()


@njit(cache=True, nogil=True)
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
        during = gap[p] + a.extra[seq[p]] - saved[p]
        total += a.time[seq[p]]
        peak = max(peak, during)
        over += max(0, during - budget)
    return total, peak, over
