"""A lower bound on time for any schedule in any order: the Lagrangian dual of the boundary.

At a price per saved byte the boundary problem is a minimum cut (`mincut`), hence

    base_time + max over price of [cut(price) - price * capacity]

bounds every schedule. The function is concave and piecewise linear; the two lines that
bracket its top are intersected until no new line appears. Every step of that search is
itself a valid bound, so rounding the price costs a little tightness and never validity.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass

import numpy as np

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


def lower_bound(
    problem: RematProblem, budget: int | None, time_limit: float = 2.0, hot: list[int] | None = None
) -> int:
    """Least total time of any schedule within ``budget``; -1 where none fits.

    Parameters
    ----------
    problem : RematProblem
    budget : int or None
        Bytes; None: no limit.
    time_limit : float
        Seconds. The turn is always tried.
    hot : list of int, optional
        Operators to try as pivots, best first.
    """
    if budget is None:
        return problem.base_time
    if budget < problem.floor:
        return -1
    best = 0
    pivots = list(dict.fromkeys(([] if problem.turn is None else [problem.turn]) + (hot or [])))
    stop = clock.monotonic() + time_limit
    for number, pivot in enumerate(pivots):
        if number and clock.monotonic() > stop:
            break
        result = boundary_bound(Boundary(problem, pivot), budget)
        if result.extra < 0:
            return -1
        best = max(best, result.extra)
    return problem.base_time + best
