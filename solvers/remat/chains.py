"""Compound changes: a chain of reruns inserted or deleted together, and taken back."""

from __future__ import annotations

import numpy as np

from .apply import do_delete, do_insert
from .arrays import Arrays
from .jit import helper
from .moves import try_delete, try_insert
from .state import USELESS, State, last_use, run_after, run_before

TRAIL = 64  # changes in one compound move; row TRAIL of a trail holds their number
INSERT, DELETE, MOVE = range(3)


@helper
def undo(a: Arrays, st: State, trail: np.ndarray, depth: int, out: np.ndarray) -> None:
    for i in range(depth - 1, -1, -1):
        kind, v, p = trail[i]
        if kind == INSERT:
            try_delete(a, st, p, out)
            do_delete(a, st, p, out)
        else:
            st.meta[USELESS] = 1
            try_insert(a, st, v, p, out)
            st.meta[USELESS] = 0
            do_insert(a, st, v, p, out)


@helper
def insert_chain(
    a: Arrays, st: State, v: int, p: int, share: float, fixed: bool, trail: np.ndarray
) -> int:
    """Insert ``v`` before ``p`` and, by chance, those of its inputs that died before ``p``.

    The changes are noted at the end of ``trail``. Returns how many it holds then.
    """
    out = np.zeros(2, np.int64)
    base = trail[TRAIL, 0]
    if (fixed or a.op[v].rank >= 0) and st.runs[v, 0] >= p:
        return base
    if not try_insert(a, st, v, p, out):
        return base
    do_insert(a, st, v, p, out)
    trail[base, 0], trail[base, 1], trail[base, 2] = INSERT, v, p
    depth = base + 1
    place = p
    pending = np.empty(TRAIL, np.int64)
    pending[0] = v
    todo = 1
    # The links of the chain stand in a row that begins at p; each new one goes to its front,
    # before everything that may read it.
    while todo > 0 and depth < len(trail) - 1:
        todo -= 1
        reader = pending[todo]
        for k in range(a.op[reader].reads_at, a.op[reader].reads_end):
            s = a.rows[k]
            w = a.storage[s].writer
            if depth >= len(trail) - 1 or todo >= TRAIL - 1 or np.random.random() > share:
                continue
            made = run_before(st, w, place)
            if made < 0:
                continue
            # Still alive at p for another reader beyond the chain: nothing to gain.
            idle = last_use(a, st, s, made, place)
            beyond = last_use(a, st, s, made, run_after(st, w, place - 1))
            if beyond >= place + depth - base or place - idle < 8:
                continue
            if not try_insert(a, st, w, place, out):
                continue
            do_insert(a, st, w, place, out)
            trail[depth, 0], trail[depth, 1], trail[depth, 2] = INSERT, w, place
            depth += 1
            pending[todo] = w
            todo += 1
    trail[TRAIL, 0] = depth
    return depth


@helper
def delete_chain(a: Arrays, st: State, p: int, fixed: bool, trail: np.ndarray) -> int:
    """Delete step ``p`` and then every repeated run that only served it."""
    out = np.zeros(2, np.int64)
    v = st.step[p].seq
    if fixed and st.runs[v, 0] == p:
        return 0
    if not try_delete(a, st, p, out):
        return 0
    do_delete(a, st, p, out)
    trail[0, 0], trail[0, 1], trail[0, 2] = DELETE, v, p
    depth, i = 1, 0
    while i < depth and depth < len(trail) - 1:
        reader, at = trail[i, 1], trail[i, 2]
        i += 1
        for k in range(a.op[reader].reads_at, a.op[reader].reads_end):
            w = a.storage[a.rows[k]].writer
            made = run_before(st, w, at)
            if made < 0 or st.ran[w] < 2 or depth >= TRAIL - 1:
                continue
            if fixed and st.runs[w, 0] == made:
                continue
            dead = True
            for j in range(a.op[w].writes_at, a.op[w].writes_end):
                s = a.rows[j]
                dead = dead and last_use(a, st, s, made, run_after(st, w, made)) == made
            if dead and try_delete(a, st, made, out):
                do_delete(a, st, made, out)
                trail[depth, 0], trail[depth, 1], trail[depth, 2] = DELETE, w, made
                depth += 1
                at -= 1
    trail[TRAIL, 0] = depth
    return depth
