"""Three changes of a schedule: insert a run, delete a run, move a run.

Each ``try_*`` prices the change without making it and returns whether it is allowed; the
change of time and of bytes over the budget stand in ``out``. `apply` makes the change that
was tried last. All cost of a trial lies in the window of steps whose gaps change.
"""

from __future__ import annotations

import numpy as np

from .arrays import Arrays
from .jit import FALSE, ZERO, helper
from .state import (
    BUDGET,
    FLAGS,
    HIGH,
    LENGTH,
    LOW,
    MOST_RUNS,
    OWN_GAP,
    OWN_SAVED,
    POINTS,
    TURN,
    USELESS,
    State,
    crosses,
    flag,
    last_use,
    last_use_but,
    run_after,
    run_before,
    settle_points,
    span,
)


@helper
def begin(st: State) -> None:
    """Nothing is under trial."""
    st.meta[FLAGS] = st.meta[POINTS] = 0
    st.meta[LOW], st.meta[HIGH] = st.meta[LENGTH] + 1, -1


@helper
def clear(st: State) -> None:
    """Forget the spans of the move that was tried last."""
    if st.meta[HIGH] >= 0:
        for x in range(st.meta[LOW], st.meta[HIGH] + 2):
            st.step[x].diff = 0
        st.meta[LOW], st.meta[HIGH] = st.meta[LENGTH] + 1, -1


@helper
def change(a: Arrays, st: State, own_old: int, own_new: int, skip: int) -> int:
    """Change of the bytes over the budget by spans, points and the moved step itself."""
    budget = st.meta[BUDGET]
    low, high = st.meta[LOW], st.meta[HIGH]
    total = max(0, own_new - budget) - max(0, own_old - budget)
    for i in range(st.meta[POINTS]):
        x = st.point[i].at
        less = st.point[i].saved - st.step[x].saved
        if low <= x <= high and x != skip:
            st.step[x].less = less
        else:
            before = st.step[x].gap + a.op[st.step[x].seq].extra - st.step[x].saved - budget
            total += max(0, before - less) - max(0, before)
    add = 0
    for x in range(low, high + 1):
        add += st.step[x].diff
        if x != skip:
            before = st.step[x].gap + a.op[st.step[x].seq].extra - st.step[x].saved - budget
            total += max(0, before + add - st.step[x].less) - max(0, before)
    for i in range(st.meta[POINTS]):
        st.step[st.point[i].at].less = 0
    return total


@helper
def reusable(a: Arrays, v: int, s: int) -> bool:
    """May ``v`` overwrite ``s`` where it reads it last?"""
    found = False
    for k in range(a.op[v].reuse_at, a.op[v].reuse_end):
        found = found or a.rows[k] == s
    return found


@helper
def try_insert(a: Arrays, st: State, v: int, p: int, out: np.ndarray) -> bool:
    """One more run of ``v`` just before step ``p``.

    Refused if nobody would read its outputs, unless ``meta[USELESS]``: that undoes a deletion.
    """
    begin(st)
    if a.op[v].single or st.ran[v] >= MOST_RUNS or st.meta[LENGTH] + 4 > len(st.step):
        return False
    c = run_before(st, v, p)
    if c < 0 and st.meta[USELESS] == 0:
        return False
    useful = st.meta[USELESS] == 1
    for k in range(a.op[v].writes_at, a.op[v].writes_end):
        s = a.rows[k]
        u = last_use(a, st, s, c, run_after(st, v, p - 1))
        if u >= p:
            useful = True
            last = last_use(a, st, s, c, p)
            span(st, last + 1, p, -a.storage[s].size)
            if last > c:
                flag(st, s, last, not crosses(st, c, last))
            if u < st.meta[LENGTH]:
                flag(st, s, u, not (p <= st.meta[TURN] < u))
    if not useful:
        clear(st)
        return False
    dying = 0
    for k in range(a.op[v].reads_at, a.op[v].reads_end):
        s = a.rows[k]
        w = a.storage[s].writer
        made = run_before(st, w, p)
        if made < 0:
            clear(st)
            return False
        u = last_use(a, st, s, made, run_after(st, w, p - 1))
        if u < p:
            span(st, u + 1, p, a.storage[s].size)
            if u > made:
                flag(st, s, u, FALSE)
            if not (made < st.meta[TURN] < p) and reusable(a, v, s):
                dying = 1
    settle_points(a, st)
    add = 0
    for x in range(st.meta[LOW], p + 1):
        add += st.step[x].diff
    st.meta[OWN_GAP] = st.step[p].gap + add
    st.meta[OWN_SAVED] = a.op[v].gain * dying
    during = st.meta[OWN_GAP] + a.op[v].extra - st.meta[OWN_SAVED]
    out[0] = a.op[v].time
    out[1] = change(a, st, ZERO, during, p)
    return True


@helper
def try_delete(a: Arrays, st: State, p: int, out: np.ndarray) -> bool:
    """Step ``p`` away; its readers turn to the copy before."""
    begin(st)
    v = st.step[p].seq
    if st.ran[v] < 2 or (a.op[v].rank >= 0 and st.runs[v, 0] == p):
        return False
    c = run_before(st, v, p)
    after = run_after(st, v, p)
    for k in range(a.op[v].writes_at, a.op[v].writes_end):
        s = a.rows[k]
        u = last_use(a, st, s, p, after)
        if u > p:
            if c < 0:
                clear(st)
                return False
            last = last_use(a, st, s, c, p)
            span(st, last + 1, p, a.storage[s].size)
            if last > c:
                flag(st, s, last, FALSE)
            if u < st.meta[LENGTH]:
                flag(st, s, u, not crosses(st, c, u))
    for k in range(a.op[v].reads_at, a.op[v].reads_end):
        s = a.rows[k]
        w = a.storage[s].writer
        made, until = run_before(st, w, p), run_after(st, w, p)
        if last_use(a, st, s, made, until) == p:
            last = last_use_but(a, st, s, made, until, p)
            span(st, last + 1, p, -a.storage[s].size)
            if last > made:
                flag(st, s, last, not crosses(st, made, last))
    settle_points(a, st)
    out[0] = -a.op[v].time
    out[1] = change(a, st, st.step[p].gap + a.op[v].extra - st.step[p].saved, ZERO, p)
    return True


@helper
def window(a: Arrays, st: State, p: int, out: np.ndarray) -> None:
    """First and last place that step ``p`` can take without any read changing its copy."""
    v = st.step[p].seq
    low, high = run_before(st, v, p), min(st.meta[LENGTH], run_after(st, v, p))
    for k in range(a.op[v].reads_at, a.op[v].reads_end):
        w = a.storage[a.rows[k]].writer
        low, high = max(low, run_before(st, w, p)), min(high, run_after(st, w, p))
    for k in range(a.op[v].writes_at, a.op[v].writes_end):
        s = a.rows[k]
        for i in range(a.storage[s].readers_at, a.storage[s].readers_end):
            r = a.rows[i]
            low, high = max(low, run_before(st, r, p)), min(high, run_after(st, r, p))
    out[0], out[1] = low + 1, high - 1


@helper
def try_move(a: Arrays, st: State, p: int, q: int, out: np.ndarray) -> bool:
    """Step ``p`` to place ``q`` inside its `window` (not checked)."""
    begin(st)
    v = st.step[p].seq
    if p == q or v == a.turn:
        return False
    early = q < p
    if a.op[v].rank >= 0:
        for x in range(min(p, q), max(p, q) + 1):
            if x != p and a.op[st.step[x].seq].rank >= 0:
                return False
    late = q > st.meta[TURN] if early else q >= st.meta[TURN]  # always, without a turn
    dying = 0
    own = st.step[q].gap if early else st.step[q + 1].gap
    for k in range(a.op[v].reads_at, a.op[v].reads_end):
        s = a.rows[k]
        w = a.storage[s].writer
        made, until = run_before(st, w, p), run_after(st, w, p)
        u = last_use(a, st, s, made, until)
        ends = False  # is v the last reader at its new place?
        if early and u == p:
            other = last_use_but(a, st, s, made, until, p)
            span_low = max(other + 1, q)
            if span_low <= p - 1:
                span(st, span_low, p - 1, -a.storage[s].size)
            if other >= q:
                flag(st, s, other, not crosses(st, made, other))
            else:
                ends = True
        elif not early and u <= q:
            ends = True
            own += a.storage[s].size
            if u + 1 <= q:
                span(st, u + 1, q, a.storage[s].size)
            if u > p:
                flag(st, s, u, FALSE)
        if ends and not (made < st.meta[TURN] and late) and reusable(a, v, s):
            dying = 1
    after = run_after(st, v, p)
    for k in range(a.op[v].writes_at, a.op[v].writes_end):
        s = a.rows[k]
        u = last_use(a, st, s, p, after)
        if u > p:
            if early:
                span(st, q, p - 1, a.storage[s].size)
            else:
                span(st, p + 1, q, -a.storage[s].size)
                own -= a.storage[s].size
            if u < st.meta[LENGTH]:
                flag(st, s, u, late or u <= st.meta[TURN])
    settle_points(a, st)
    st.meta[OWN_GAP], st.meta[OWN_SAVED] = own, a.op[v].gain * dying
    during = own + a.op[v].extra - st.meta[OWN_SAVED]
    out[0] = 0
    out[1] = change(a, st, st.step[p].gap + a.op[v].extra - st.step[p].saved, during, p)
    return True
