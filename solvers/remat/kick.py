"""Kicks: an operator that is run again must run once only; the rest is repaired and improved.

From a schedule that recomputes an expensive value, small moves rarely find the way to one that
keeps it: much else has to be recomputed instead before anything is gained. Forbidding the rerun
for a while leads there.
"""

from __future__ import annotations

import time as clock

import numpy as np

from .anneal import BEST_TIME
from .arrays import Arrays
from .relieve import relieve
from .worker import Worker

MOVES = 300  # for each operator of the graph, after each kick
# First temperatures in mean durations, in turn.
HOT = (1.0, 0.3, 3.0)


def candidates(
    a: Arrays, sequence: np.ndarray, random: np.random.Generator, most: int
) -> np.ndarray:
    """Operators that ``sequence`` repeats, drawn by the time that their reruns take."""
    again = np.bincount(sequence, minlength=len(a.op)) - 1
    spent = np.where(a.op["single"] == 0, again * a.op["time"], 0).astype(float)
    worth = int(np.count_nonzero(spent))
    if worth == 0:
        return np.zeros(0, np.int64)
    return random.choice(len(spent), min(most, worth), replace=False, p=spent / spent.sum())


def forbid(a: Arrays, sequence: np.ndarray, operator: int) -> tuple[Arrays, np.ndarray]:
    """The problem in which ``operator`` runs once, and ``sequence`` without its reruns."""
    op = a.op.copy()
    op["single"][operator] = 1
    runs = np.flatnonzero(sequence == operator)
    return a._replace(op=op), np.delete(sequence, runs[1:])


def kicks(
    worker: Worker,
    sequence: np.ndarray,
    operators: np.ndarray,
    budget: int,
    mean: float,
    deadline: float,
) -> np.ndarray | None:
    """The fastest schedule within ``budget`` after a kick from ``sequence`` by each operator.

    Parameters
    ----------
    worker : Worker
        Its arrays are those of the problem again afterwards; its schedule is any.
    mean : float
        Duration of an operator.
    deadline : float
        By `time.monotonic`.
    """
    a, weight = worker.a, worker.weight
    best, least = None, 0
    for i, operator in enumerate(operators):
        if worker.halt or clock.monotonic() > deadline:
            break
        worker.a, start = forbid(a, sequence, int(operator))
        worker.weight = weight
        try:
            worker.start(relieve(worker.a, start, budget, 1.0), budget)
            hot = HOT[i % len(HOT)] * mean
            worker.run(MOVES * len(a.op), hot, hot / 30, 1.0, False, deadline)
        finally:
            worker.a = a
        time, found = int(worker.record[BEST_TIME]), worker.found()
        if found is not None and (best is None or time < least):
            best, least = found, time
    return best
