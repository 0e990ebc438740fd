"""Loading or compiling all kernels before they are needed."""

from __future__ import annotations

import threading

import numpy as np

from .anneal import RECORD, anneal
from .arrays import flatten
from .chainplan import warm_chain
from .evaluate import evaluate
from .problem import RematProblem
from .relieve import relieve
from .schedule import on_demand
from .state import empty_state, load

_lock = threading.Lock()
_warm = False


def warm_up() -> None:
    """Load every kernel from numba's cache on disk, or compile it.

    About 0.4 s with a warm cache, 20 s without. Later calls return at once; a call while
    another thread is at it waits for that one. `solve` calls it before its clock starts, so
    call it early, in a background thread, to have the kernels ready by then.
    """
    global _warm
    with _lock:
        if _warm:
            return
        problem = RematProblem.from_edges([1, 1, 1], [1, 1, 1], [(0, 1), (0, 2), (1, 2)])
        a, order = flatten(problem), np.arange(3)
        everything = np.ones(3, np.bool_)
        evaluate(a, on_demand(a, order, 1, everything, ~everything), 1)
        state = empty_state(a, 100)
        load(a, state, order, 1)
        best, record = np.zeros(104, np.int64), np.zeros(RECORD, np.int64)
        anneal(a, state, 1, 1.0, 0.1, 1.0, 1.0, 1.0, 1, False, False, best, record)
        relieve(a, order, 1, 1.0)
        warm_chain()
        _warm = True
