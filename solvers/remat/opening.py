"""Schedules at which the search begins."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence

import numpy as np

from .blocks import blocks
from .check import check
from .evaluate import evaluate
from .mincut import Boundary
from .prices import starts
from .problem import RematProblem
from .relieve import relieve
from .worker import Incumbent

# Operators from which on `blocks` makes a start too: it has one at hand seconds before the cuts.
MANY = 1000


def given_start(problem: RematProblem, start: Sequence[int], reorder: bool) -> np.ndarray:
    """The schedule to begin at."""
    check(problem, start)
    if not reorder and list(dict.fromkeys(start)) != list(range(problem.count)):
        raise ValueError("the schedule to start from runs operators in another order than given")
    return np.array(start, np.int64)


def openings(
    problem: RematProblem,
    incumbent: Incumbent,
    price: float,
    reorder: bool,
    time_limit: float,
    gap: float,
) -> list[np.ndarray]:
    """First schedules of the search, most promising first."""
    a, budget = incumbent.a, incumbent.budget
    scale = max(price, float(a.op["time"].sum()) / max(1.0, float(a.storage["size"].sum())))

    def cost(sequence: np.ndarray, factor: float = 1.0) -> float:
        total, _, over = evaluate(a, sequence, budget)
        return total + factor * scale * over

    stop = clock.monotonic() + 0.2 * time_limit
    latest = clock.monotonic() + 0.6 * time_limit
    cuts = []
    if problem.turn is not None:
        boundary = Boundary(problem, problem.turn)
        ranked = starts(problem, a, boundary, budget, price, 0.1 * time_limit, reorder)
        cuts = [sequence for _, sequence in ranked]
        within = [sequence for (over, _), sequence in ranked if over == 0]
        cuts = within[:1] + sorted(cuts, key=cost)[:6]
        if problem.count >= MANY:
            now = clock.monotonic()
            cuts.insert(0, blocks(problem, a, budget, now + 0.3 * time_limit))
            incumbent.offer(cuts[0])
            if incumbent.room < gap:
                return cuts
            stop += clock.monotonic() - now
    found: list[np.ndarray] = []
    for sequence in [*cuts, np.arange(problem.count)]:
        for share in (1.0, 0.0):
            if not found or clock.monotonic() < stop:
                found.append(relieve(a, sequence, budget, share, latest))
    found += cuts
    for sequence in found:
        incumbent.offer(sequence)
    # Which price of excess bytes ranks starts best is not known: take some by each.
    picked: dict[bytes, np.ndarray] = {}
    for factor in (1.0, 10.0, 100.0, 0.1):
        cheapest = sorted(found, key=lambda sequence: cost(sequence, factor))
        fresh = [sequence for sequence in cheapest if sequence.tobytes() not in picked]
        for sequence in fresh[:2]:
            picked[sequence.tobytes()] = sequence
    return list(picked.values())
