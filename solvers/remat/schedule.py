"""From a choice of what to recompute after the turn to a sequence of operators."""

from __future__ import annotations

import numpy as np

from .arrays import Arrays
from .jit import entry


@entry
def on_demand(
    a: Arrays, order: np.ndarray, pivot_at: int, redo: np.ndarray, delay: np.ndarray
) -> np.ndarray:
    """Run ``order``; after the turn make what is missing just before its first use.

    Parameters
    ----------
    a : Arrays
    order : int64[n]
        Every operator once, in a valid order.
    pivot_at : int
        Place of the turn in ``order``: what stands before it is the forward part.
    redo : bool[n]
        Operators of the forward part whose outputs are dropped at the turn and made again
        when something reads them. A chain of missing inputs is made depth first, so that
        each link lives as briefly as the reads allow.
    delay : bool[n]
        Operators of the forward part that need not run before the turn at all; those that
        nothing asks for run at the end.

    Returns
    -------
    int64[L]
        A schedule. Copies die after their last read by themselves, nothing is freed here.
    """
    count = len(order)
    sequence = np.empty(2 * count, np.int64)
    there = np.zeros(count, np.bool_)
    length = 0
    for p in range(pivot_at + 1):
        v = order[p]
        if not delay[v]:
            sequence[length] = v
            length += 1
            there[v] = not redo[v]
    stack = np.empty(2 * count + 2, np.int64)
    busy = np.zeros(count, np.bool_)
    for p in range(pivot_at + 1, 2 * count):
        if p < count:
            root = order[p]
        elif p - count <= pivot_at and delay[order[p - count]]:
            root = order[p - count]
        else:
            continue
        if there[root]:
            continue
        stack[0], depth = root, 1
        while depth:
            v = stack[depth - 1]
            if there[v]:
                depth -= 1
                continue
            if not busy[v]:
                busy[v] = True
                # The stack takes the last first: push in reverse to go by order of reads.
                for k in range(a.op[v].reads_end - 1, a.op[v].reads_at - 1, -1):
                    w = a.storage[a.rows[k]].writer
                    if not there[w] and not busy[w]:
                        stack[depth] = w
                        depth += 1
                continue
            sequence[length] = v
            length += 1
            there[v] = True
            depth -= 1
    return sequence[:length].copy()
