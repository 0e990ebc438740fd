"""A schedule with what is needed to price a change of one step in microseconds.

Positions are indices into the sequence. Copy ``c`` of a storage is the run of its writer at
position ``c``; it fills the gaps ``c + 1 .. u``, ``u`` its last read (the length of the
sequence for what is kept to the end). Gap ``p`` lies just before step ``p``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .arrays import Arrays
from .evaluate import timeline

NEVER = 1 << 40  # a position beyond every sequence
MOST_RUNS = 12  # runs of one operator

# Entries of State.meta.
LENGTH, TURN, TIME, OVER, BUDGET, LOW, HIGH, POINTS, FLAGS, OWN_SAVED, OWN_GAP = range(11)


class State(NamedTuple):
    """Current schedule, and scratch space for the move under trial.

    Attributes
    ----------
    seq : int64[cap]
        The schedule, ``meta[LENGTH]`` steps.
    gap, saved : int64[cap + 1]
        As `evaluate.timeline` gives them.
    runs : int64[n, MOST_RUNS]
        Positions of the runs of each operator, ascending; ``count[n]`` of them.
    meta : int64[16]
        Length, position of the turn, total time, bytes over the budget, the budget; and of
        the move under trial: its window, list lengths, and its own step's bytes.
    diff : int64[cap + 2]
        Change of the gaps inside the window, as differences from gap to gap.
    less : int64[cap + 2]
        Scratch of `moves`, zero between calls.
    point, point_saved : int64[t]
        Steps whose overwriting was looked at anew, and the bytes they save then.
    flag_storage, flag_at, flag_on : int64[t]
        ``flag_storage`` may (1) or may not (0) be overwritten by step ``flag_at`` after it.
    """

    seq: np.ndarray
    gap: np.ndarray
    saved: np.ndarray
    runs: np.ndarray
    count: np.ndarray
    meta: np.ndarray
    diff: np.ndarray
    less: np.ndarray
    point: np.ndarray
    point_saved: np.ndarray
    flag_storage: np.ndarray
    flag_at: np.ndarray
    flag_on: np.ndarray


def empty_state(a: Arrays, capacity: int) -> State:
    """Room for a schedule of ``capacity`` steps; fill it with `load`."""
    operators = len(a.time)
    # One flag for each read, two for each output of the operator that moves.
    touched = 4 + int((np.diff(a.reads_at) + 2 * np.diff(a.writes_at)).max(initial=0))

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int64)

    return State(
        zeros(capacity + 2),
        zeros(capacity + 3),
        zeros(capacity + 3),
        zeros(operators, MOST_RUNS),
        zeros(operators),
        zeros(16),
        zeros(capacity + 4),
        zeros(capacity + 4),
        zeros(touched),
        zeros(touched),
        zeros(touched),
        zeros(touched),
        zeros(touched),
    )


@njit(cache=True, nogil=True)
def load(a: Arrays, st: State, seq: np.ndarray, budget: int) -> bool:
    """Make ``seq`` the current schedule; False if it does not fit or is not valid."""
    length = len(seq)
    if length + 2 > len(st.seq):
        return False
    gap, saved = np.empty(length + 1, np.int64), np.empty(length, np.int64)
    if not timeline(a, seq, gap, saved):
        return False
    st.seq[:length] = seq
    st.gap[: length + 1] = gap
    st.saved[:length] = saved
    st.count[:] = 0
    st.diff[:] = 0
    total = 0
    st.meta[TURN] = -1
    for p in range(length):
        v = seq[p]
        if st.count[v] == MOST_RUNS:
            return False
        st.runs[v, st.count[v]] = p
        st.count[v] += 1
        total += a.time[v]
        if v == a.turn:
            st.meta[TURN] = p
    st.meta[LENGTH], st.meta[TIME] = length, total
    set_budget(a, st, budget)
    return True


@njit(cache=True, nogil=True)
def set_budget(a: Arrays, st: State, budget: int) -> None:
    """Measure the current schedule against another budget."""
    st.meta[BUDGET] = budget
    over = 0
    for p in range(st.meta[LENGTH]):
        over += max(0, st.gap[p] + a.extra[st.seq[p]] - st.saved[p] - budget)
    st.meta[OVER] = over


@njit(cache=True, nogil=True)
def peak_of(a: Arrays, st: State) -> int:
    """Most bytes alive at once."""
    peak = a.resident
    for p in range(st.meta[LENGTH]):
        peak = max(peak, st.gap[p] + a.extra[st.seq[p]] - st.saved[p])
    return peak


@njit(cache=True, nogil=True)
def run_before(st: State, v: int, p: int) -> int:
    """Last run of ``v`` before position ``p``, -1 if none."""
    for k in range(st.count[v] - 1, -1, -1):
        if st.runs[v, k] < p:
            return st.runs[v, k]
    return -1


@njit(cache=True, nogil=True)
def run_after(st: State, v: int, p: int) -> int:
    """First run of ``v`` after position ``p``, ``NEVER`` if none."""
    for k in range(st.count[v]):
        if st.runs[v, k] > p:
            return st.runs[v, k]
    return NEVER


@njit(cache=True, nogil=True)
def last_use(a: Arrays, st: State, s: int, c: int, until: int, skip: int) -> int:
    """Last read of ``s`` in positions ``c + 1 .. until - 1`` without ``skip``, else ``c``.

    ``until``: the next run of the writer. The length of the sequence is returned for a copy
    that is kept to the end.
    """
    if until == NEVER and a.keep[s]:
        return st.meta[LENGTH]
    last = c
    for k in range(a.readers_at[s], a.readers_at[s + 1]):
        r = a.readers[k]
        for i in range(st.count[r] - 1, -1, -1):
            q = st.runs[r, i]
            if q <= last:
                break
            if q < until and q != skip:
                last = q
                break
    return last


@njit(cache=True, nogil=True)
def crosses(st: State, c: int, u: int) -> bool:
    """Made before the turn and read after it."""
    return c < st.meta[TURN] < u


@njit(cache=True, nogil=True)
def flag(st: State, s: int, at: int, on: bool) -> None:
    """Note that overwriting ``s`` at step ``at`` is (not) possible after the move."""
    n = st.meta[FLAGS]
    st.flag_storage[n], st.flag_at[n], st.flag_on[n] = s, at, on
    st.meta[FLAGS] = n + 1


@njit(cache=True, nogil=True)
def span(st: State, low: int, high: int, delta: int) -> None:
    """Add ``delta`` bytes to the gaps ``low .. high``."""
    st.diff[low] += delta
    st.diff[high + 1] -= delta
    st.meta[LOW] = min(st.meta[LOW], low)
    st.meta[HIGH] = max(st.meta[HIGH], high)


@njit(cache=True, nogil=True)
def settle_points(a: Arrays, st: State) -> None:
    """Work out, for every flagged step, what it saves by overwriting after the move."""
    n = 0
    for f in range(st.meta[FLAGS]):
        x = st.flag_at[f]
        v = st.seq[x]
        if a.reuse_at[v] == a.reuse_at[v + 1]:
            continue
        seen = False
        for i in range(n):
            seen = seen or st.point[i] == x
        if seen:
            continue
        value = 0
        for k in range(a.reuse_at[v], a.reuse_at[v + 1]):
            if _may_overwrite(a, st, a.reuse[k], x):
                value = a.gain[v]
                break
        if value != st.saved[x]:
            st.point[n], st.point_saved[n] = x, value
            n += 1
    st.meta[POINTS] = n


@njit(cache=True, nogil=True)
def _may_overwrite(a: Arrays, st: State, s: int, x: int) -> bool:
    for f in range(st.meta[FLAGS]):
        if st.flag_storage[f] == s and st.flag_at[f] == x:
            return st.flag_on[f] == 1
    w = a.writer[s]
    c, until = run_before(st, w, x), run_after(st, w, x)
    if crosses(st, c, x):
        return False
    return last_use(a, st, s, c, until, -1) == x
