"""A lower bound on time for any schedule in any order: the Lagrangian dual of the boundary.

At a price per saved byte the boundary problem is a minimum cut (`mincut`), hence

    base_time + max over price of [cut(price) - price * capacity]

bounds every schedule. The function is concave and piecewise linear; the two lines that
bracket its top are intersected until no new line appears. Every step of that search is
itself a valid bound, so rounding the price costs a little tightness and never validity.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, field

import numpy as np

from .chainbound import chain_bound
from .mincut import LIMIT, Boundary, Cut
from .problem import RematProblem


@dataclass(frozen=True)
class BoundaryBound:
    """Result of the dual at one pivot.

    Attributes
    ----------
    extra : int
        Time beyond ``base_time`` that no schedule avoids; -1: no schedule fits.
    price : float
        Time per byte at the top.
    light, heavy : Cut or None
        Optimal choices that save less and more than the capacity.
    """

    extra: int
    price: float
    light: Cut | None
    heavy: Cut | None


def boundary_bound(boundary: Boundary, budget: int, steps: int = 40) -> BoundaryBound:
    """Top of the dual at one pivot, by the cutting-plane search of the module's text."""
    problem = boundary.problem
    capacity = boundary.capacity(budget)
    if capacity < 0:
        return BoundaryBound(-1, 0.0, None, None)
    size = np.array(problem.size, np.int64)
    none = np.zeros(problem.count, np.bool_)
    heavy = Cut(0, none, boundary.saves(none))
    if boundary.bytes(heavy.save) <= capacity:
        return BoundaryBound(0, 0.0, None, heavy)
    # The least that can be saved: recomputing is free.
    light = boundary.cut(size, np.zeros_like(boundary.cost))
    if boundary.bytes(light.save) > capacity:
        return BoundaryBound(-1, 0.0, light, heavy)
    light = Cut(0, light.redo, light.save)
    total_bytes, total_time = int(size.sum()) + 1, int(boundary.cost.sum()) + 1
    best, best_price = 0, 0.0
    for _ in range(steps):
        heavy_bytes, light_bytes = boundary.bytes(heavy.save), boundary.bytes(light.save)
        heavy_cost = int(boundary.cost[heavy.redo].sum())
        light_cost = int(boundary.cost[light.redo].sum())
        if light_cost <= heavy_cost or light_bytes >= heavy_bytes:
            break
        slope = (light_cost - heavy_cost) / (heavy_bytes - light_bytes)
        scale = 1
        while scale < 1 << 40 and 2 * scale * max(total_time, total_bytes * slope) < LIMIT:
            scale *= 2
        unit = max(1, round(slope * scale))
        cut = boundary.cut(size * unit, boundary.cost * scale)
        bound = -((capacity * unit - cut.value) // scale)  # ceiling
        if bound > best:
            best, best_price = bound, unit / scale
        cut_bytes = boundary.bytes(cut.save)
        line = heavy_cost * scale + heavy_bytes * unit
        if cut.value >= line - scale // 1024 or cut_bytes in (heavy_bytes, light_bytes):
            break
        if cut_bytes > capacity:
            heavy = cut
        else:
            light = cut
    return BoundaryBound(best, best_price, light, heavy)


@dataclass(frozen=True)
class Bound:
    """What is known before any search.

    Attributes
    ----------
    time : int
        No schedule within the budget takes less; -1: none fits.
    price : float
        Time per byte where memory is tightest.
    pivots : tuple of Boundary
        The pivots looked at, those with the best bounds first.
    """

    time: int
    price: float
    pivots: tuple[Boundary, ...] = field(default=(), repr=False)


def lower_bound(problem: RematProblem, budget: int, during: np.ndarray, seconds: float) -> Bound:
    """Best bound over many pivots, then over a few of them at once (`chainbound`).

    Any operator can be the pivot: when it first runs, its ancestors have run and its
    descendants have not.

    Parameters
    ----------
    problem : RematProblem
    budget : int
        Bytes.
    during : int64[n]
        Bytes of each step of the given order: pivots are sought where it is over budget.
    seconds : float
        Time limit. The turn is always tried.
    """
    stop = clock.monotonic() + seconds
    found: dict[int, tuple[BoundaryBound, Boundary]] = {}

    def probe(pivot: int) -> bool:
        if pivot not in found:
            boundary = Boundary(problem, pivot)
            found[pivot] = boundary_bound(boundary, budget), boundary
        return found[pivot][0].extra >= 0

    if problem.turn is not None and not probe(problem.turn):
        return Bound(-1, 0.0)
    hot = [int(v) for v in np.argsort(-during, kind="stable") if during[v] > budget]
    best = -1
    # A coarse sample first, then the neighbourhood of the best.
    for stride in (24, 48):
        for pivot in hot[:: max(1, len(hot) // stride)]:
            if clock.monotonic() > stop:
                break
            if not probe(pivot):
                return Bound(-1, 0.0)
        if not found:
            return Bound(problem.base_time, 0.0)
        best = max(found, key=lambda v: found[v][0].extra)
        for pivot in range(max(0, best - 8), min(problem.count, best + 9)):
            if clock.monotonic() > stop:
                break
            if not probe(pivot):
                return Bound(-1, 0.0)
    ranked = sorted(found, key=lambda v: -found[v][0].extra)
    extra, price = found[ranked[0]][0].extra, max(r.price for r, _ in found.values())
    time = problem.base_time + extra
    left = stop - clock.monotonic()
    pivots = [found[v][1] for v in ranked]
    if extra > 0 and left > 0.05:
        chain = chain_of(pivots, most=5, apart=problem.count // 60)
        time = max(time, chain_bound(problem, chain, budget, left))
    return Bound(time, price, tuple(pivots))


def spread(ranked: list[Boundary], windows: int) -> list[Boundary]:
    """A chain of the best pivot in each of ``windows`` equal parts of where pivots stand.

    Pivots close to each other say much the same; those of other layers add to it. One that
    neither precedes nor follows all that were taken gives way to the next best of its part.

    Parameters
    ----------
    ranked : list of Boundary
        Best first.
    windows : int
        At most so many are taken.
    """
    low = min((boundary.pivot for boundary in ranked), default=0)
    width = max((boundary.pivot for boundary in ranked), default=0) + 1 - low
    taken: set[int] = set()
    chain: list[Boundary] = []
    for boundary in ranked:
        window = (boundary.pivot - low) * windows // width
        if window not in taken and _comparable(boundary, chain):
            taken.add(window)
            chain.append(boundary)
    return sorted(chain, key=lambda boundary: int(boundary.before.sum()))


def _comparable(boundary: Boundary, chain: list[Boundary]) -> bool:
    """Does it precede or follow each of ``chain``?"""
    return all(boundary.before[o.pivot] or o.before[boundary.pivot] for o in chain)


def chain_of(ranked: list[Boundary], most: int, apart: int) -> list[Boundary]:
    """The best pivots each of which precedes the next, not too close to each other."""
    chain: list[Boundary] = []
    for boundary in ranked:
        if len(chain) == most:
            break
        far = all(abs(boundary.pivot - other.pivot) > apart for other in chain)
        if far and _comparable(boundary, chain):
            chain.append(boundary)
    return sorted(chain, key=lambda boundary: int(boundary.before.sum()))
