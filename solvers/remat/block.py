"""A fourth change of a schedule: insert a block, a chain of reruns side by side.

The block stands in the order of the operators' numbers, in which every operator follows what
it reads. It is priced as a whole without being made, like the changes in `moves`.
"""

from __future__ import annotations

import numpy as np

from .apply import shift, write_window
from .arrays import Arrays
from .jit import FALSE, ZERO, helper
from .moves import begin, change, clear, reusable
from .state import (
    BLOCK,
    BUDGET,
    LENGTH,
    MOST_BLOCK,
    MOST_RUNS,
    OVER,
    TIME,
    TURN,
    State,
    crosses,
    flag,
    last_use,
    run_after,
    run_before,
    settle_points,
    span,
)

NEAR = 8  # an input that died fewer steps ago is held on to rather than made again


@helper
def _gather(a: Arrays, st: State, v: int, p: int, share: float) -> bool:
    """Choose the block: ``v`` and, by chance, those of its inputs that died before ``p``.

    False where something that the block reads has not run before ``p``.
    """
    st.block[0].op = v
    count, i = 1, 0
    # Every link may flag its reads once and its outputs twice.
    room = len(st.flag) - 4
    # From the last to the first, which is reversed in the end: what an operator reads has a
    # smaller number, so it comes after it, and all readers are known when it is looked at.
    while i < count:
        reader = st.block[i].op
        room -= a.op[reader].reads_end - a.op[reader].reads_at
        room -= 2 * (a.op[reader].writes_end - a.op[reader].writes_at)
        i += 1
        for k in range(a.op[reader].reads_at, a.op[reader].reads_end):
            s = a.rows[k]
            w = a.storage[s].writer
            made = run_before(st, w, p)
            if made < 0:
                return False
            if count == MOST_BLOCK or np.random.random() > share:
                continue
            u = last_use(a, st, s, made, run_after(st, w, p - 1))
            if u > p - NEAR or a.op[w].single or st.ran[w] >= MOST_RUNS:
                continue
            need = a.op[w].reads_end - a.op[w].reads_at
            need += 2 * (a.op[w].writes_end - a.op[w].writes_at)
            x = count
            while st.block[x - 1].op < w:
                x -= 1
            if st.block[x - 1].op == w or room < need + len(st.flag) // 4:
                continue
            for y in range(count, x, -1):
                st.block[y].op = st.block[y - 1].op
            st.block[x].op = w
            count += 1
    for x in range(count // 2):
        y = count - 1 - x
        st.block[x].op, st.block[y].op = st.block[y].op, st.block[x].op
    st.meta[BLOCK] = count
    return room >= 0


@helper
def _in_block(st: State, v: int) -> bool:
    found = False
    for x in range(st.meta[BLOCK]):
        found = found or st.block[x].op == v
    return found


@helper
def try_block(a: Arrays, st: State, v: int, p: int, share: float, out: np.ndarray) -> bool:
    """A run of ``v`` just before step ``p``, after reruns of inputs that died, of inputs of
    those, and so on; each with probability ``share``, else the old copy lives on.
    """
    begin(st)
    if a.op[v].single or st.ran[v] >= MOST_RUNS or run_before(st, v, p) < 0:
        return False
    if not _gather(a, st, v, p, share) or st.meta[LENGTH] + st.meta[BLOCK] + 4 > len(st.step):
        return False
    count, budget = st.meta[BLOCK], st.meta[BUDGET]
    for i in range(count):
        for k in range(a.op[st.block[i].op].reads_at, a.op[st.block[i].op].reads_end):
            st.mark[a.rows[k]] = i + 1  # its last reader in the block
    useful = False
    gap, time, over = st.step[p].gap, ZERO, ZERO
    for i in range(count - 1, -1, -1):
        w = st.block[i].op
        time += a.op[w].time
        c = run_before(st, w, p)
        for k in range(a.op[w].writes_at, a.op[w].writes_end):
            s = a.rows[k]
            u = last_use(a, st, s, c, run_after(st, w, p - 1))
            if u >= p:
                # Its later readers turn to the new copy.
                useful = True
                gap -= a.storage[s].size
                last = last_use(a, st, s, c, p)
                span(st, last + 1, p, -a.storage[s].size)
                if last > c:
                    flag(st, s, last, not crosses(st, c, last))
                if u < st.meta[LENGTH]:
                    flag(st, s, u, not (p <= st.meta[TURN] < u))
            elif st.mark[s] > 0:
                gap -= a.storage[s].size
        saved = ZERO
        for k in range(a.op[w].reads_at, a.op[w].reads_end):
            s = a.rows[k]
            if st.mark[s] != i + 1:
                continue
            x = a.storage[s].writer
            made = run_before(st, x, p)
            u = last_use(a, st, s, made, run_after(st, x, p - 1))
            if u >= p:
                continue
            gap += a.storage[s].size
            inside = _in_block(st, x)
            if not inside:
                span(st, u + 1, p, a.storage[s].size)
                if u > made:
                    flag(st, s, u, FALSE)
            if (inside or not (made < st.meta[TURN] < p)) and reusable(a, w, s):
                saved = a.op[w].gain
        st.block[i].gap, st.block[i].saved = gap, saved
        over += max(0, gap + a.op[w].extra - saved - budget)
    for i in range(count):
        for k in range(a.op[st.block[i].op].reads_at, a.op[st.block[i].op].reads_end):
            st.mark[a.rows[k]] = 0
    if not useful:
        clear(st)
        return False
    settle_points(a, st)
    out[0] = time
    out[1] = change(a, st, ZERO, budget + over, p)
    return True


@helper
def do_block(a: Arrays, st: State, p: int, out: np.ndarray) -> None:
    """Make the insertion that `try_block` has priced."""
    length, count = st.meta[LENGTH], st.meta[BLOCK]
    write_window(st, p)
    shift(st, p, length - 1, count)
    for x in range(length, p - 1, -1):
        st.step[x + count].gap = st.step[x].gap
        if x < length:
            st.step[x + count].seq = st.step[x].seq
            st.step[x + count].saved = st.step[x].saved
    for i in range(count):
        v = st.block[i].op
        st.step[p + i].seq = v
        st.step[p + i].gap, st.step[p + i].saved = st.block[i].gap, st.block[i].saved
        k = st.ran[v]
        while k > 0 and st.runs[v, k - 1] > p:
            st.runs[v, k] = st.runs[v, k - 1]
            k -= 1
        st.runs[v, k] = p + i
        st.ran[v] += 1
    if st.meta[TURN] >= p:
        st.meta[TURN] += count
    st.meta[LENGTH] = length + count
    clear(st)
    st.meta[TIME] += out[0]
    st.meta[OVER] += out[1]
