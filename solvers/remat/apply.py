"""Making real a change that `moves` has priced."""

from __future__ import annotations

import numpy as np

from .arrays import Arrays
from .jit import MINUS_ONE, ONE, helper
from .moves import clear
from .state import (
    HIGH,
    LENGTH,
    LOW,
    OVER,
    OWN_GAP,
    OWN_SAVED,
    POINTS,
    TIME,
    TURN,
    State,
)


@helper
def write_window(st: State, skip: int) -> None:
    """Make the spans and points real."""
    add = 0
    for x in range(st.meta[LOW], st.meta[HIGH] + 1):
        add += st.step[x].diff
        if x != skip:
            st.step[x].gap += add
    for i in range(st.meta[POINTS]):
        st.step[st.point[i].at].saved = st.point[i].saved


@helper
def shift(st: State, low: int, high: int, by: int) -> None:
    """Runs at positions ``low .. high`` have moved by ``by``: correct ``runs`` (not ``seq``)."""
    for i in range(high - low + 1):
        # From the end that moves first, so that no run is met twice.
        x = high - i if by > 0 else low + i
        v = st.step[x].seq
        k = 0
        while st.runs[v, k] != x:
            k += 1
        st.runs[v, k] = x + by


@helper
def do_insert(a: Arrays, st: State, v: int, p: int, out: np.ndarray) -> None:
    """Make the insertion that was tried last."""
    length = st.meta[LENGTH]
    write_window(st, p)
    shift(st, p, length - 1, ONE)
    for x in range(length, p, -1):
        st.step[x].seq = st.step[x - 1].seq
        st.step[x].saved = st.step[x - 1].saved
    for x in range(length + 1, p, -1):
        st.step[x].gap = st.step[x - 1].gap
    st.step[p].seq, st.step[p].gap, st.step[p].saved = v, st.meta[OWN_GAP], st.meta[OWN_SAVED]
    k = st.ran[v]
    while k > 0 and st.runs[v, k - 1] > p:
        st.runs[v, k] = st.runs[v, k - 1]
        k -= 1
    st.runs[v, k] = p
    st.ran[v] += 1
    if st.meta[TURN] >= p:
        st.meta[TURN] += 1
    _finish(st, out)
    st.meta[LENGTH] = length + 1


@helper
def do_delete(a: Arrays, st: State, p: int, out: np.ndarray) -> None:
    """Make the deletion that was tried last."""
    length, v = st.meta[LENGTH], st.step[p].seq
    write_window(st, p)
    k = 0
    while st.runs[v, k] != p:
        k += 1
    for i in range(k, st.ran[v] - 1):
        st.runs[v, i] = st.runs[v, i + 1]
    st.ran[v] -= 1
    shift(st, p + 1, length - 1, MINUS_ONE)
    for x in range(p, length - 1):
        st.step[x].seq = st.step[x + 1].seq
        st.step[x].saved = st.step[x + 1].saved
    for x in range(p, length):
        st.step[x].gap = st.step[x + 1].gap
    if st.meta[TURN] > p:
        st.meta[TURN] -= 1
    _finish(st, out)
    st.meta[LENGTH] = length - 1


@helper
def do_move(a: Arrays, st: State, p: int, q: int, out: np.ndarray) -> None:
    """Make the move that was tried last."""
    v = st.step[p].seq
    write_window(st, p)
    k = 0
    while st.runs[v, k] != p:
        k += 1
    step = -1 if q < p else 1
    if step > 0:
        shift(st, p + 1, q, MINUS_ONE)
    else:
        shift(st, q, p - 1, ONE)
    st.runs[v, k] = q
    x = p
    while x != q:
        st.step[x].seq, st.step[x].gap, st.step[x].saved = (
            st.step[x + step].seq,
            st.step[x + step].gap,
            st.step[x + step].saved,
        )
        x += step
    st.step[q].seq, st.step[q].gap, st.step[q].saved = v, st.meta[OWN_GAP], st.meta[OWN_SAVED]
    turn = st.meta[TURN]
    if step < 0 and q <= turn < p:
        st.meta[TURN] += 1
    elif step > 0 and p < turn <= q:
        st.meta[TURN] -= 1
    _finish(st, out)


@helper
def _finish(st: State, out: np.ndarray) -> None:
    clear(st)
    st.meta[TIME] += out[0]
    st.meta[OVER] += out[1]
