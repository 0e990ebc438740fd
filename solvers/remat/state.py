"""A schedule with what is needed to price a change of one step in microseconds.

Positions are indices into the sequence. Copy ``c`` of a storage is the run of its writer at
position ``c``; it fills the gaps ``c + 1 .. u``, ``u`` its last read (the length of the
sequence for what is kept to the end). Gap ``p`` lies just before step ``p``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Arrays
from .evaluate import timeline
from .jit import NEVER, entry, helper

MOST_RUNS = 12  # runs of one operator
MOST_BLOCK = 64  # reruns inserted together

# Entries of State.meta.
LENGTH, TURN, TIME, OVER, BUDGET, LOW, HIGH, POINTS, FLAGS, OWN_SAVED, OWN_GAP, USELESS = range(12)
BLOCK = 12


STEP = np.dtype([(name, np.int64) for name in ("seq", "gap", "saved", "diff", "less")], align=True)
POINT = np.dtype([("at", np.int64), ("saved", np.int64)], align=True)
LINK = np.dtype([("op", np.int64), ("gap", np.int64), ("saved", np.int64)], align=True)
FLAG = np.dtype([("storage", np.int64), ("at", np.int64), ("on", np.int64)], align=True)


class State(NamedTuple):
    """Current schedule, and scratch space for the move under trial.

    Attributes
    ----------
    step : STEP[cap]
        ``seq``: the schedule, ``meta[LENGTH]`` steps; ``gap``, ``saved``: bytes as
        `evaluate.timeline` gives them; ``diff``: change of the gaps by the move under trial,
        as differences from gap to gap; ``less``: scratch of `moves`, zero between calls.
    runs : int64[n, MOST_RUNS]
        Positions of the runs of each operator, ascending; ``ran[n]`` of them.
    meta : int64[16]
        Length, position of the turn, total time, bytes over the budget, the budget; and of
        the move under trial: its window, list lengths, and its own step's bytes.
    point : POINT[t]
        Steps whose overwriting was looked at anew, and the bytes they save then.
    flag : FLAG[t]
        ``storage`` may (1) or may not (0) be overwritten by step ``at`` after the move.
    block : LINK[MOST_BLOCK]
        The reruns of `block` under trial, ``meta[BLOCK]`` of them, and their bytes.
    mark : int64[m]
        Scratch of `block`, zero between calls.
    """

    step: np.ndarray
    runs: np.ndarray
    ran: np.ndarray
    meta: np.ndarray
    point: np.ndarray
    flag: np.ndarray
    block: np.ndarray
    mark: np.ndarray


def empty_state(a: Arrays, capacity: int) -> State:
    """Room for a schedule of ``capacity`` steps; fill it with `load`."""
    operators = len(a.op)
    reads = a.op["reads_end"] - a.op["reads_at"]
    writes = a.op["writes_end"] - a.op["writes_at"]
    # One flag for each read, two for each output of the operator that moves.
    most = int((reads + 2 * writes).max(initial=0))
    touched = 4 + max(most, min(4 * MOST_BLOCK, 2 * int((reads + 2 * writes).sum())))
    return State(
        np.zeros(capacity + 4, STEP),
        np.zeros((operators, MOST_RUNS), np.int64),
        np.zeros(operators, np.int64),
        np.zeros(16, np.int64),
        np.zeros(touched, POINT),
        np.zeros(touched, FLAG),
        np.zeros(MOST_BLOCK, LINK),
        np.zeros(len(a.storage), np.int64),
    )


@entry
def load(a: Arrays, st: State, seq: np.ndarray, budget: int) -> bool:
    """Make ``seq`` the current schedule; False if it does not fit or is not valid."""
    length = len(seq)
    if length + 4 > len(st.step):
        return False
    gap, saved = np.empty(length + 1, np.int64), np.empty(length, np.int64)
    if not timeline(a, seq, gap, saved):
        return False
    st.ran[:] = 0
    for p in range(len(st.step)):
        st.step[p].diff = st.step[p].less = 0
    st.step[length].gap = gap[length]
    total = 0
    st.meta[TURN] = -1
    for p in range(length):
        v = seq[p]
        st.step[p].seq, st.step[p].gap, st.step[p].saved = v, gap[p], saved[p]
        if st.ran[v] == MOST_RUNS:
            return False
        st.runs[v, st.ran[v]] = p
        st.ran[v] += 1
        total += a.op[v].time
        if v == a.turn:
            st.meta[TURN] = p
    st.meta[LENGTH], st.meta[TIME] = length, total
    set_budget(a, st, budget)
    return True


@helper
def set_budget(a: Arrays, st: State, budget: int) -> None:
    """Measure the current schedule against another budget."""
    st.meta[BUDGET] = budget
    over = 0
    for p in range(st.meta[LENGTH]):
        over += max(0, st.step[p].gap + a.op[st.step[p].seq].extra - st.step[p].saved - budget)
    st.meta[OVER] = over


@helper
def peak_of(a: Arrays, st: State) -> int:
    """Most bytes alive at once."""
    peak = a.resident
    for p in range(st.meta[LENGTH]):
        peak = max(peak, st.step[p].gap + a.op[st.step[p].seq].extra - st.step[p].saved)
    return peak


@helper
def run_before(st: State, v: int, p: int) -> int:
    """Last run of ``v`` before position ``p``, -1 if none."""
    for k in range(st.ran[v] - 1, -1, -1):
        if st.runs[v, k] < p:
            return st.runs[v, k]
    return -1


@helper
def run_after(st: State, v: int, p: int) -> int:
    """First run of ``v`` after position ``p``, ``NEVER`` if none."""
    for k in range(st.ran[v]):
        if st.runs[v, k] > p:
            return st.runs[v, k]
    return NEVER


@helper
def last_use(a: Arrays, st: State, s: int, c: int, until: int) -> int:
    """Last read of ``s`` in positions ``c + 1 .. until - 1``, else ``c``.

    ``until``: the next run of the writer. The length of the sequence is returned for a copy
    that is kept to the end.
    """
    return last_use_but(a, st, s, c, until, NEVER)


@helper
def last_use_but(a: Arrays, st: State, s: int, c: int, until: int, skip: int) -> int:
    """`last_use` as it would be without the read at ``skip``."""
    if until == NEVER and a.storage[s].keep:
        return st.meta[LENGTH]
    last = c
    for k in range(a.storage[s].readers_at, a.storage[s].readers_end):
        r = a.rows[k]
        for i in range(st.ran[r] - 1, -1, -1):
            q = st.runs[r, i]
            if q <= last:
                break
            if q < until and q != skip:
                last = q
                break
    return last


@helper
def crosses(st: State, c: int, u: int) -> bool:
    """Made before the turn and read after it."""
    return c < st.meta[TURN] < u


@helper
def flag(st: State, s: int, at: int, on: bool) -> None:
    """Note that overwriting ``s`` at step ``at`` is (not) possible after the move."""
    n = st.meta[FLAGS]
    st.flag[n].storage, st.flag[n].at, st.flag[n].on = s, at, on
    st.meta[FLAGS] = n + 1


@helper
def span(st: State, low: int, high: int, delta: int) -> None:
    """Add ``delta`` bytes to the gaps ``low .. high``."""
    st.step[low].diff += delta
    st.step[high + 1].diff -= delta
    st.meta[LOW] = min(st.meta[LOW], low)
    st.meta[HIGH] = max(st.meta[HIGH], high)


@helper
def settle_points(a: Arrays, st: State) -> None:
    """Work out, for every flagged step, what it saves by overwriting after the move."""
    n = 0
    for f in range(st.meta[FLAGS]):
        x = st.flag[f].at
        v = st.step[x].seq
        if a.op[v].reuse_at == a.op[v].reuse_end:
            continue
        seen = False
        for i in range(n):
            seen = seen or st.point[i].at == x
        if seen:
            continue
        value = 0
        for k in range(a.op[v].reuse_at, a.op[v].reuse_end):
            if _may_overwrite(a, st, a.rows[k], x):
                value = a.op[v].gain
                break
        if value != st.step[x].saved:
            st.point[n].at, st.point[n].saved = x, value
            n += 1
    st.meta[POINTS] = n


@helper
def _may_overwrite(a: Arrays, st: State, s: int, x: int) -> bool:
    for f in range(st.meta[FLAGS]):
        if st.flag[f].storage == s and st.flag[f].at == x:
            return st.flag[f].on == 1
    w = a.storage[s].writer
    c, until = run_before(st, w, x), run_after(st, w, x)
    if crosses(st, c, x):
        return False
    return last_use(a, st, s, c, until) == x
