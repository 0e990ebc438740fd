"""The best of plain orders: instant, and on training steps near the bound."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from .arrays import Buffers, height
from .place import place, shelf
from .skyline import lowest_first

_CHUNK = 2_000  # buffers placed between two looks at the clock
Order = np.ndarray
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Placed:
    """A packing and how it came about.

    Attributes
    ----------
    name : str
        Of the method.
    placed : int64[n]
        Offsets in units.
    height : int
        Bytes.
    """

    name: str
    placed: np.ndarray
    height: int

    @classmethod
    def of(cls, name: str, buffers: Buffers, placed: np.ndarray) -> Placed:
        """With the height that ``placed`` has."""
        return cls(name, placed, height(buffers.problem, buffers.offsets(placed)))


def orders(buffers: Buffers) -> dict[str, Order]:
    """Orders in which to place buffers, by name; larger first by each key in turn."""
    size, width = buffers.size, buffers.upper - buffers.lower
    busiest = buffers.intervals.busiest(buffers.intervals.totals(size))
    area = size * width
    return {
        "busiest, width": np.lexsort((-area, -width, -busiest)),
        "busiest, size": np.lexsort((-width, -size, -busiest)),
        "busiest, area": np.lexsort((-width, -area, -busiest)),
        "start": np.lexsort((-size, buffers.lower)),
        "end": np.lexsort((-size, -buffers.upper)),
        "size": np.lexsort((buffers.lower, -size)),
        "area": np.lexsort((-width, -area)),
        "width": np.lexsort((-busiest, -area, -width)),
    }


def fill(
    buffers: Buffers,
    order: Order,
    given: np.ndarray,
    tightest: bool,
    stop: Stop = lambda: False,
) -> np.ndarray | None:
    """Place all in ``order``, those with an offset in ``given`` there first; None if stopped.

    Parameters
    ----------
    buffers : Buffers
    order : int64[n]
    given : int64[n]
        Offsets in units, -1 where free.
    tightest : bool
        Take the tightest gap that holds a buffer, not the lowest.
    stop : callable
        Asked now and then.
    """
    own, top = shelf(buffers), 0
    known = given[order] >= 0
    order = np.concatenate([order[known], order[~known]])
    for at in range(0, len(order), _CHUNK):
        if stop():
            return None
        top = place(own, order[at : at + _CHUNK], given, tightest, top)
    return own.buffer["bottom"].copy()


def each_order(
    buffers: Buffers, enough: int = 0, deadline: float = float("inf"), threads: int = 2
) -> Iterator[Placed]:
    """The packing by each order, lowest first, then in first and in tightest gaps.

    Parameters
    ----------
    buffers : Buffers
    enough : int
        Stop at a packing of no more bytes.
    deadline : float
        By `time.monotonic`: what is not done by then is given up, but for the first.
    threads : int
        Orders that are tried at one time.
    """
    found_enough = False

    def late() -> bool:
        return found_enough or clock.monotonic() > deadline

    free = np.full(buffers.count, -1, np.int64)
    by_name = orders(buffers)
    # One that is quick for any problem and always finished, the rest by what they promise.
    jobs: list[tuple[str, Callable[[], np.ndarray | None]]] = [
        ("first gap, start", partial(fill, buffers, by_name["start"], free, False))
    ]
    for name, order in by_name.items():
        if name != "start":
            jobs.append((f"first gap, {name}", partial(fill, buffers, order, free, False, late)))
        jobs.append((f"lowest first, {name}", partial(lowest_first, buffers, order, late)))
        jobs.append((f"tightest gap, {name}", partial(fill, buffers, order, free, True, late)))

    def run(job: tuple[str, Callable[[], np.ndarray | None]]) -> Placed | None:
        nonlocal found_enough
        if job is not jobs[0] and late():
            return None
        placed = job[1]()
        if placed is None:
            return None
        found = Placed.of(job[0], buffers, placed)
        found_enough = found_enough or found.height <= enough
        return found

    with ThreadPoolExecutor(threads) as pool:
        yield from (found for found in pool.map(run, jobs) if found is not None)


def greedy(
    buffers: Buffers, enough: int = 0, deadline: float = float("inf"), threads: int = 2
) -> Placed:
    """The lowest packing of `each_order`, whose parameters it takes."""
    return min(each_order(buffers, enough, deadline, threads), key=lambda found: found.height)
