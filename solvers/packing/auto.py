"""`pack`: plain orders first, then the search, and CP-SAT where proofs are wanted."""

from __future__ import annotations

import time as clock

from .arrays import Buffers, height
from .greedy import Placed, greedy
from .incumbent import Incumbent
from .problem import PackingProblem
from .search import cores, search
from .solution import PackingSolution
from .warm import warm_greedy, warm_search

# CP-SAT gets this share of the time, once, for problems of at most so many buffers.
_PROOF_SHARE, _PROOF_MOST = 0.2, 120


def pack(
    problem: PackingProblem,
    capacity: int | None = None,
    time_limit: float = 60.0,
    seed: int = 0,
) -> PackingSolution:
    """Choose an offset for every buffer.

    Parameters
    ----------
    problem : PackingProblem
    capacity : int, optional
        Bytes. Given: the first packing within it is the answer, or that there is none. None: the
        lowest packing that can be found in the time, and less time if it is proved lowest.
    time_limit : float
        Seconds, kept within a tenth. Loading numba's kernels comes on top, once for each process
        (`warm_up`); those of the search are loaded only where it is needed.
    seed : int
        For CP-SAT; the other parts draw nothing.

    Returns
    -------
    PackingSolution
    """
    warm_greedy()
    deadline = clock.monotonic() + time_limit
    bound = problem.lower_bound
    buffers = Buffers.of(problem)
    if capacity is not None and capacity < bound:
        return PackingSolution((), 0, bound, "infeasible")
    if buffers is None:
        offset = tuple(max(0, at) for at in problem.offsets_given)
        return PackingSolution(offset, height(problem, offset), bound, "optimal")
    enough = bound if capacity is None else capacity
    incumbent = Incumbent(greedy(buffers, enough, deadline, cores()), bound, capacity or 0)
    if not incumbent.done and clock.monotonic() < deadline:
        deadline += warm_search()
        _improve(buffers, incumbent, capacity, deadline, seed)
    return _answer(buffers, incumbent.best, incumbent.bound, capacity)


def _improve(
    buffers: Buffers, incumbent: Incumbent, capacity: int | None, deadline: float, seed: int
) -> None:
    """Search, and for small problems ask CP-SAT in between."""
    now = clock.monotonic()
    small = buffers.count <= _PROOF_MOST
    search(buffers, incumbent, now + 0.4 * (deadline - now) if small else deadline, capacity)
    if small and not incumbent.done:
        _prove(buffers, incumbent, capacity, _PROOF_SHARE * (deadline - now), seed)
    if small and not incumbent.done:
        search(buffers, incumbent, deadline, capacity)


def _prove(
    buffers: Buffers, incumbent: Incumbent, capacity: int | None, seconds: float, seed: int
) -> None:
    from .cpsat import cpsat  # OR-Tools takes half a second to import

    most = incumbent.best.height - 1 if capacity is None else capacity
    answer = cpsat(buffers, most, capacity is None, seconds, cores(), seed)
    if answer.placed is not None:
        incumbent.offer(Placed.of("CP-SAT", buffers, answer.placed))
    incumbent.bound = max(incumbent.bound, answer.bound)


def _answer(buffers: Buffers, best: Placed, bound: int, capacity: int | None) -> PackingSolution:
    if capacity is not None and best.height > capacity:
        status = "infeasible" if bound > capacity else "unknown"
    else:
        status = "optimal" if best.height <= bound else "feasible"
    return PackingSolution(buffers.offsets(best.placed), best.height, bound, status)
