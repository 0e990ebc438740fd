"""Schedules of little peak: starts without annealing, and what earlier calls have found."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .arrays import Arrays
from .evaluate import evaluate
from .heuristics import pivot_of
from .mincut import LIMIT, Boundary
from .problem import RematProblem
from .relieve import relieve
from .schedule import on_demand

PRICES = np.geomspace(1e-4, 1e4, 25)  # of a byte saved at the turn, over the mean time per byte


def ladder(problem: RematProblem, a: Arrays) -> list[np.ndarray]:
    """From recomputing nothing to recomputing all, by one price of a byte saved at the turn.

    What the cut keeps at a middling price are the narrow places of the forward part, such as
    the residual stream between layers; the rest is made again layer by layer. Least peak
    first, without repeats.
    """
    count, pivot = problem.count, pivot_of(problem, a)
    boundary, order = Boundary(problem, pivot), np.arange(count)
    size, may = np.array(problem.size, np.int64), (order <= pivot) & (a.op["single"] == 0)
    if problem.turn is None:
        may[pivot] = False
    unit = max(1, sum(problem.time)) / max(1, sum(problem.size))
    # Integers that lose little to rounding and still add up in 64 bits.
    scale = min(1000.0, LIMIT / 8 / max(1.0, PRICES[-1] * unit * float(size.sum())))
    never = np.zeros(count, np.bool_)
    found: dict[bytes, tuple[int, np.ndarray]] = {}
    for price in PRICES:
        cost = np.maximum(boundary.cost * scale, boundary.cost > 0).astype(np.int64)
        cut = boundary.cut((size * (price * unit * scale)).astype(np.int64), cost)
        sequence = on_demand(a, order, pivot, cut.redo & may, never)
        found[sequence.tobytes()] = evaluate(a, sequence, 0)[1], sequence
    return [sequence for _, sequence in sorted(found.values(), key=lambda entry: entry[0])]


def lean_start(problem: RematProblem, a: Arrays) -> np.ndarray:
    """The schedule of least peak that is known after a second; where `search.squeeze` begins.

    It depends on the problem alone: whatever the budget, the squeeze takes the same path, so a
    later call with the least peak of an earlier one as its budget comes by that schedule again.
    """
    order = np.arange(problem.count)
    starts = [*ladder(problem, a)[:2], order]
    budget = problem.floor + problem.floor // 20
    found = starts + [relieve(a, sequence, budget, 1.0) for sequence in starts]
    return min(found, key=lambda sequence: evaluate(a, sequence, 0)[1])


_known: OrderedDict[tuple, np.ndarray] = OrderedDict()


def _key(problem: RematProblem, fixed: bool) -> tuple:
    # All that decides whether a schedule is valid and what it holds; not the times.
    return (
        *(problem.size, problem.reads, problem.writes, problem.workspace, problem.reuse),
        *(problem.once, problem.ordered, problem.turn, problem.keep, problem.resident_bytes),
        fixed,
    )


def remember(problem: RematProblem, fixed: bool, sequence: np.ndarray, most: int = 16) -> None:
    """Note a schedule of little peak for later calls in this process."""
    _known[_key(problem, fixed)] = sequence
    while len(_known) > most:
        _known.popitem(last=False)


def recall(problem: RematProblem, fixed: bool) -> np.ndarray | None:
    """What `remember` was last given for this problem, with whatever times."""
    return _known.get(_key(problem, fixed))
