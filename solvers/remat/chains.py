"""A compound change: a rerun deleted with every rerun that only served it, and put back."""

from __future__ import annotations

import numpy as np

from .apply import do_delete, do_insert
from .arrays import Arrays
from .jit import helper
from .moves import try_delete, try_insert
from .state import USELESS, State, last_use, run_after, run_before

TRAIL = 64  # most runs deleted together


@helper
def restore(a: Arrays, st: State, trail: np.ndarray, depth: int, out: np.ndarray) -> None:
    """Put back the last ``depth`` runs of ``trail``."""
    st.meta[USELESS] = 1
    for i in range(depth - 1, -1, -1):
        try_insert(a, st, trail[i, 0], trail[i, 1], out)
        do_insert(a, st, trail[i, 0], trail[i, 1], out)
    st.meta[USELESS] = 0


@helper
def delete_chain(
    a: Arrays, st: State, p: int, fixed: bool, trail: np.ndarray, out: np.ndarray
) -> int:
    """Delete step ``p`` and then every repeated run that only served it.

    Notes operator and place of each in ``trail`` and returns how many they are.
    """
    v = st.step[p].seq
    if fixed and st.runs[v, 0] == p:
        return 0
    if not try_delete(a, st, p, out):
        return 0
    do_delete(a, st, p, out)
    trail[0, 0], trail[0, 1] = v, p
    depth, i = 1, 0
    while i < depth and depth < len(trail):
        reader, at = trail[i, 0], trail[i, 1]
        i += 1
        for k in range(a.op[reader].reads_at, a.op[reader].reads_end):
            w = a.storage[a.rows[k]].writer
            made = run_before(st, w, at)
            if made < 0 or st.ran[w] < 2 or depth >= len(trail):
                continue
            if fixed and st.runs[w, 0] == made:
                continue
            dead = True
            for j in range(a.op[w].writes_at, a.op[w].writes_end):
                s = a.rows[j]
                dead = dead and last_use(a, st, s, made, run_after(st, w, made)) == made
            if dead and try_delete(a, st, made, out):
                do_delete(a, st, made, out)
                trail[depth, 0], trail[depth, 1] = w, made
                depth += 1
                at -= 1
    return depth
