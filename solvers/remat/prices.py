"""Starts for the search: boundary cuts under prices that vary over the backward part.

A byte saved at the turn is held until its last use, so a value that backward reads last costs
most; and bytes are only dear where memory is tight. Each round decides by a minimum cut at
the present prices, builds the schedule, replays it exactly, and raises prices where it is over
the budget (a subgradient step of the Lagrangian in which every position of the given order
has its own price). The answer is a heuristic: recomputation itself moves the positions.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterator

import numpy as np

from .arrays import Arrays
from .evaluate import evaluate, timeline
from .mincut import Boundary
from .problem import RematProblem
from .schedule import on_demand


class Spans:
    """When, in places of the given order, a value is first and last wanted after the turn.

    Attributes
    ----------
    first : int64[n]
        Place of the first use of an output of the operator, were it recomputed.
    last : int64[m]
        Place up to which a saved storage is held.
    """

    def __init__(self, problem: RematProblem, boundary: Boundary) -> None:
        count, pivot = problem.count, boundary.pivot
        end = count
        self.first = np.full(count, end, np.int64)
        self.last = np.full(len(problem.size), pivot, np.int64)
        for v in range(count - 1, -1, -1):
            for s in problem.writes[v]:
                if s in problem.keep:
                    self.last[s] = end
                for r in boundary.readers[s]:
                    place = r if r > pivot else self.first[r]
                    self.first[v] = min(self.first[v], place)
                    if place < end:
                        self.last[s] = max(self.last[s], place)


def price_rounds(
    problem: RematProblem,
    a: Arrays,
    boundary: Boundary,
    budget: int,
    start_price: float,
    reorder: bool = True,
    rounds: int = 400,
) -> Iterator[np.ndarray]:
    """Yield a schedule for each round of prices.

    Parameters
    ----------
    problem, a : the same problem in both forms
    boundary : Boundary
        Around the turn.
    budget : int
        Bytes.
    start_price : float
        Time per byte at the turn, from the bound.
    reorder : bool
        Operators aside from the turn may wait until they are asked for.
    rounds : int
    """
    count, pivot = problem.count, boundary.pivot
    spans = Spans(problem, boundary)
    size, time = np.array(problem.size, np.int64), boundary.cost
    order = np.arange(count)
    place = np.where(order > pivot, order, 0)
    price = np.zeros(count + 2)
    price[pivot] = start_price
    scale_time = max(1.0, float(time.sum()))
    aim, before, stuck = 0.05 * scale_time, b"", 0
    unit = max(1.0, 1e15 / (scale_time * 8))
    once = np.zeros(count, np.bool_)
    once[list(problem.once)] = True
    ordered = np.zeros(count, np.bool_)
    ordered[list(problem.ordered)] = True
    for turn in range(rounds):
        upto = np.concatenate(([0.0], np.cumsum(price)))
        hold = upto[np.minimum(spans.last + 1, count + 1)] - upto[pivot]
        save_price = np.minimum(size * np.maximum(hold, 0) * unit, 1e16).astype(np.int64)
        redo_price = time * unit
        for v in boundary.nodes:
            for s in problem.writes[v]:
                held = upto[min(spans.last[s] + 1, count + 1)] - upto[spans.first[v]]
                redo_price[v] += size[s] * max(held, 0) * unit
        cut = boundary.cut(save_price, np.minimum(redo_price, 1e16).astype(np.int64), turn % 2 == 1)
        delay = reorder & cut.redo & ~boundary.before & (order <= pivot) & ~ordered
        for v in range(pivot, -1, -1):  # what an undelayed operator reads cannot wait either
            if delay[v]:
                readers = (r for s in problem.writes[v] for r in boundary.readers[s])
                delay[v] = all(r > pivot or delay[r] for r in readers)
        sequence = on_demand(a, order, pivot, cut.redo & (order <= pivot) & ~once, delay)
        yield sequence
        gap, saved = np.empty(len(sequence) + 1, np.int64), np.empty(len(sequence), np.int64)
        timeline(a, sequence, gap, saved)
        during = gap[:-1] + a.op["extra"][sequence] - saved
        at = int(np.flatnonzero(sequence == pivot)[0])
        # A recomputed run counts at the place of the run that asked for it.
        spot = place[sequence[at:]]
        spot[0] = pivot
        spot = np.where(spot > 0, spot, count)
        spot = np.minimum.accumulate(spot[::-1])[::-1]
        excess = np.full(count + 2, -np.inf)
        np.maximum.at(excess, spot, (during[at:] - budget).astype(float))
        excess[~np.isfinite(excess)] = 0
        excess[(excess < 0) & (price <= 0)] = 0
        # Polyak's step towards a value a little above the present one.
        norm = float((excess**2).sum())
        if norm == 0:
            return
        digest = sequence.tobytes()
        # Too short a step leaves the cut where it was; too long a one skips good cuts.
        aim = min(aim * 2, scale_time) if digest == before else max(aim * 0.9, 1e-4 * scale_time)
        stuck = stuck + 1 if digest == before else 0
        if stuck > 40:
            return
        before = digest
        # A byte that costs more than the whole step is not worth more still.
        price = np.clip(price + aim / norm * excess, 0, 2 * scale_time / max(1, budget))


def starts(
    problem: RematProblem,
    a: Arrays,
    boundary: Boundary,
    budget: int,
    start_price: float,
    time_limit: float,
    reorder: bool = True,
) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Distinct schedules of `price_rounds`, best first: by bytes over budget, then time."""
    stop = clock.monotonic() + time_limit
    found: dict[bytes, tuple[tuple[int, int], np.ndarray]] = {}
    for sequence in price_rounds(problem, a, boundary, budget, start_price, reorder):
        total, _, over = evaluate(a, sequence, budget)
        found[sequence.tobytes()] = ((over, total), sequence)
        if clock.monotonic() > stop:
            break
    return sorted(found.values(), key=lambda item: item[0])
