"""The best of plain orders: instant, and on training steps near the bound."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .arrays import Buffers, height
from .place import place, shelf


@dataclass(frozen=True)
class Placed:
    """A packing by an order.

    Attributes
    ----------
    name : str
        Of the order.
    placed : int64[n]
        Offsets in units.
    height : int
        Bytes.
    """

    name: str
    placed: np.ndarray
    height: int


def orders(buffers: Buffers) -> dict[str, np.ndarray]:
    """Orders in which to place buffers, by name; those that do best on training steps first."""
    size, width = buffers.size, buffers.upper - buffers.lower
    busiest = buffers.intervals.busiest(buffers.intervals.totals(size))
    area = size * width
    return {
        "busiest, width": np.lexsort((-size, -width, -busiest)),
        "busiest, size": np.lexsort((-width, -size, -busiest)),
        "start": np.lexsort((-size, buffers.lower)),
        "size": np.lexsort((buffers.lower, -size)),
        "busiest, area": np.lexsort((-area, -busiest)),
        "end": np.lexsort((-size, -buffers.upper)),
        "area": np.lexsort((buffers.lower, -area)),
        "width": np.lexsort((-size, -width)),
    }


def greedy(
    buffers: Buffers, enough: int = 0, deadline: float = float("inf"), threads: int = 2
) -> Placed:
    """The lowest packing by every order, with both kinds of gap.

    Parameters
    ----------
    buffers : Buffers
    enough : int
        Stop at a packing of no more bytes.
    deadline : float
        By `time.monotonic`: no order is begun after it, but for the first.
    threads : int
        Orders that are tried at one time.
    """
    best: Placed | None = None
    for found in each_order(buffers, enough, deadline, threads):
        if best is None or found.height < best.height:
            best = found
    assert best is not None
    return best


def each_order(
    buffers: Buffers, enough: int = 0, deadline: float = float("inf"), threads: int = 2
) -> Iterator[Placed]:
    """The packing by each order and kind of gap; parameters as of `greedy`."""
    jobs = [(name, order, gap) for name, order in orders(buffers).items() for gap in (True, False)]
    done = False

    def run(job: tuple[str, np.ndarray, bool]) -> Placed | None:
        nonlocal done
        if done or (clock.monotonic() > deadline and job is not jobs[0]):
            return None
        name, order, tightest = job
        own = shelf(buffers)
        place(own, order, tightest)
        placed = own.buffer["bottom"].copy()
        offset = buffers.offsets(placed)
        found = Placed(
            f"{name}, {'tightest' if tightest else 'first'} gap",
            placed,
            height(buffers.problem, offset),
        )
        done = done or found.height <= enough
        return found

    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(run, jobs):
            if found is not None:
                yield found
