"""What every schedule must pay at the turn: a lower bound, and which values to move.

When the turn runs, each value that is needed after it is in memory, or on a tier, or computed
again later from values of which the same holds. What is on a tier was written before the turn and
is read after it, so with compute seconds F before and B after it

    makespan >= max(F + write tolls, writes) + turn + max(B + recomputed + read tolls, reads).

Each maximum is at least any convex mix of its parts, and a price per saved byte replaces the
budget: then each value that is not computed again costs the lesser of its price in bytes and its
price on the links, and a minimum cut (`fxmem.solvers.remat.mincut`) decides all three choices at
once. Every choice of weights and price gives a valid bound; the best is sought. All weights are
integers over a common denominator, so the bound is exact.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..remat.mincut import LIMIT, Boundary, Cut
from .problem import TransferProblem

_MOST = 1 << 20  # denominator of weights


@dataclass(frozen=True)
class Weights:
    """Over ``Turn.unit``: of compute before and after the turn, and price of a saved byte."""

    before: int
    after: int
    byte: int


@dataclass(frozen=True)
class Choice:
    """What to do at the turn, and what that takes.

    Attributes
    ----------
    bound : int
        No schedule within the budget has a smaller makespan.
    move, save : frozenset of int
        Storages on a tier, and in memory, while the turn runs.
    bytes : int
        Of ``save``, beyond what the turn itself holds; -1: not known.
    makespan : int
        If all transfers hide as far as they can.
    weights : Weights
    """

    bound: int
    move: frozenset[int]
    save: frozenset[int]
    bytes: int
    makespan: int
    weights: Weights


class Turn:
    """Choices at the turn of a problem.

    Attributes
    ----------
    capacity : int
        Bytes for saved values; negative: nothing fits.
    """

    def __init__(self, problem: TransferProblem, budget: int) -> None:
        remat = problem.remat
        self.problem = problem
        pivot = remat.turn if remat.turn is not None else _middle(problem)
        self.boundary = Boundary(remat, pivot)
        self.capacity = self.boundary.capacity(budget)
        before = self.boundary.before.copy()
        before[pivot] = False
        time = np.array(remat.time, np.int64)
        self.forward = int(time[before].sum())
        self.backward = int(time[self.boundary.after].sum())
        self.own = remat.time[pivot]
        self.aside = remat.base_time - self.forward - self.backward - self.own
        # Equal shares of a link's weight over the tiers: any shares that add up are valid.
        count, size = max(1, len(problem.tiers)), remat.size
        self.write = np.zeros(len(size), np.int64)
        self.read = np.zeros(len(size), np.int64)
        self.write_work = np.zeros(len(size), np.int64)
        self.read_work = np.zeros(len(size), np.int64)
        self.can = np.zeros(len(size), np.bool_)
        for s in problem.movable:
            self.can[s] = bool(problem.tiers)
        for s in map(int, np.flatnonzero(self.can)):
            times = [(t.write_time(size[s]), t.read_time(size[s])) for t in problem.tiers]
            self.write[s] = min(w for w, _ in times) // count
            self.read[s] = min(r for _, r in times) // count
            self.write_work[s] = min(t.write_work(size[s]) for t in problem.tiers)
            self.read_work[s] = min(t.read_work(size[s]) for t in problem.tiers)
        self.size = np.array(size, np.int64)
        links = self.write + self.read + self.write_work + self.read_work
        most = remat.base_time + int(links.max(initial=0)) + 1
        self.unit = 1
        while self.unit < _MOST and most * self.unit < LIMIT // 64:
            self.unit *= 2

    def fits(self) -> bool:
        """Can anything fit, if all that may be moved is?"""
        if self.capacity < 0:
            return False
        size = np.where(self.can, 0, self.size)
        cut = self.boundary.cut(size, np.zeros_like(self.boundary.cost))
        return self.boundary.bytes(cut.save & ~self.can) <= self.capacity

    def choose(self, weights: Weights) -> Choice:
        """The best choice at these weights and price, and its bound."""
        unit = self.unit
        links = self.price(weights)
        held = self.size * weights.byte
        price = np.where(self.can, np.minimum(links, held), held)
        cut = self.boundary.cut(price, self.boundary.cost * weights.after)
        total = weights.before * self.forward + weights.after * self.backward + unit * self.own
        total += min(weights.before, weights.after) * self.aside
        bound = -((self.capacity * weights.byte - total - cut.value) // unit)
        return self._read(cut, self.can & (links < held), bound, weights)

    def everything(self) -> Choice:
        """All that the turn would hold and may be moved, whatever the links take for it."""
        weights = Weights(self.unit, self.unit, 1)
        held = np.where(self.can, 0, self.size)
        cut = self.boundary.cut(held, self.boundary.cost * weights.after)
        return self._read(cut, self.can, 0, weights)

    def price(self, weights: Weights) -> np.ndarray:
        """What moving each storage costs, over `unit`: its time on links, and its tolls."""
        before, after = weights.before, weights.after
        out = (self.unit - before) * self.write + before * self.write_work
        return out + (self.unit - after) * self.read + after * self.read_work

    def _read(self, cut: Cut, moves: np.ndarray, bound: int, weights: Weights) -> Choice:
        paid = self.boundary.paid
        move = cut.save & moves & ~paid
        save = cut.save & ~move
        redone = int(self.boundary.cost[cut.redo].sum())
        before = self.forward + int(self.write_work[move].sum())
        after = self.backward + redone + int(self.read_work[move].sum())
        makespan = max(before, int(self.write[move].sum())) + self.own + self.aside
        makespan += max(after, int(self.read[move].sum()))
        return Choice(
            bound=bound,
            move=frozenset(int(s) for s in np.flatnonzero(move)),
            save=frozenset(int(s) for s in np.flatnonzero(save)),
            bytes=self.boundary.bytes(save),
            makespan=makespan,
            weights=weights,
        )


def _middle(problem: TransferProblem) -> int:
    """An operator halfway through the compute time."""
    passed = np.cumsum(problem.remat.time)
    return int(np.searchsorted(passed, passed[-1] // 2))


def explore(turn: Turn, seconds: float) -> list[Choice]:
    """Choices at many weights, that of the best bound first.

    The bound is concave in the weights and the price together: from the best point of a coarse
    grid, steps that shrink.
    """
    stop, unit = clock.monotonic() + seconds, turn.unit
    middle = max(1.0, unit * turn.problem.remat.base_time / max(1, int(turn.size.sum())))
    most = LIMIT // 64 // max(1, int(turn.size.sum()))
    known: dict[Weights, Choice] = {}

    def at(point: tuple[float, float, float]) -> Choice:
        """Powers of two: what the links weigh before and after the turn, and the price."""
        before, after = (unit - round(unit * 2.0 ** min(0.0, x)) for x in point[:2])
        weights = Weights(before, after, min(most, round(middle * 2.0 ** point[2])))
        if weights not in known:
            known[weights] = turn.choose(weights)
        return known[weights]

    lightest = -float(unit.bit_length())
    choices = (lightest, -8.0, -5.0, -3.0, -2.0, -1.0)
    best = (lightest, lightest, lightest - 8)
    value = at(best).bound
    for price in range(-8, 13, 2):
        for before in choices:
            for after in choices:
                point = before, after, float(price)
                if clock.monotonic() < stop and at(point).bound > value:
                    best, value = point, at(point).bound
    step = 1.0
    directions = [d for d in product((-1, 0, 1), repeat=3) if any(d)]
    while step > 1e-3 and clock.monotonic() < stop:
        before_step = value
        for direction in directions:
            b, a, p = (x + step * d for x, d in zip(best, direction, strict=True))
            if clock.monotonic() < stop and at((b, a, p)).bound > value:
                best, value = (b, a, p), at((b, a, p)).bound
        if value <= before_step:
            step /= 2
    return sorted(known.values(), key=lambda choice: -choice.bound)
