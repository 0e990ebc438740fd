"""`solve`: which values to keep, compute again or move, in which order, and when to move them."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence

from ..remat import RematSolution
from ..remat import solve as solve_remat
from .bound import Choice, Turn, explore
from .incumbent import Incumbent
from .place import place
from .problem import Action, TransferProblem
from .reduction import reduce
from .skeleton import skeleton
from .solution import TransferSolution

# Room below the budget for values on their way, in largest moved values.
MARGINS = (2, 0, 6)
# A load costs at least this share of its time: links are not free even where they are idle.
LEAST_PRICE = 0.05
# Candidates for what to move that are searched in full.
MOST = 4


def solve(
    problem: TransferProblem,
    budget: int | None,
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    start: Sequence[Action] | None = None,
) -> TransferSolution:
    """A fast schedule within ``budget`` bytes.

    Parameters
    ----------
    problem : TransferProblem
    budget : int or None
        Bytes in memory, residents included; None: no limit.
    time_limit : float
        Seconds.
    seed : int
        Equal seeds give equal answers, unless time runs out first.
    start : sequence of Action, optional
        A valid schedule to do better than, within the budget or not.

    Returns
    -------
    TransferSolution
        Its actions pass `check` within the budget where its status is ``"optimal"`` or
        ``"feasible"``.

    Raises
    ------
    ScheduleError
        ``start`` is not valid, or the operators' given order is not.
    """
    began = clock.monotonic()
    deadline = began + time_limit
    limit = 1 << 60 if budget is None else budget
    incumbent = Incumbent(problem, limit)
    incumbent.offer([Action("run", v) for v in range(problem.remat.count)], "given order")
    if start is not None:
        incumbent.offer(start, "start")
    incumbent.raise_bound(problem.remat.base_time)
    if incumbent.done or problem.remat.count == 0:
        return incumbent.answer(began)
    turn = Turn(problem, limit)
    if limit < problem.remat.floor or not turn.fits():
        # Nothing can fit; how little is in reach is wanted all the same, and soon.
        everything = frozenset(s for s in problem.movable if problem.remat.writer[s] >= 0)
        _search(incumbent, everything, {}, 0, min(deadline, clock.monotonic() + 4.0), seed)
        return incumbent.answer(began, infeasible=True)
    choices = explore(turn, 0.1 * time_limit)
    incumbent.raise_bound(choices[0].bound)
    candidates = _candidates(problem, turn, choices)
    for left, choice in zip(range(len(candidates), 0, -1), candidates, strict=True):
        if incumbent.done:
            break
        share = (deadline - clock.monotonic()) / left
        _try(incumbent, turn, choice, clock.monotonic() + share, seed)
    return incumbent.answer(began)


def _candidates(
    problem: TransferProblem, turn: Turn, choices: Iterable[Choice]
) -> list[Choice | None]:
    """What to move, most promising first; None: nothing."""
    size = problem.remat.size
    fitting = [c for c in choices if c.bytes <= turn.capacity]
    fitting.sort(key=lambda c: (c.makespan, sum(size[s] for s in c.move)))
    picked: dict[frozenset[int], Choice | None] = {}
    for choice in fitting:
        if len(picked) < MOST - 1:
            picked.setdefault(choice.move, choice)
    picked.setdefault(frozenset(), None)
    return list(picked.values())


def _try(
    incumbent: Incumbent, turn: Turn, choice: Choice | None, deadline: float, seed: int
) -> None:
    """Search with one set of storages to move, leaving more or less room for prefetching."""
    if choice is None or not choice.move:
        _search(incumbent, frozenset(), {}, incumbent.budget, deadline, seed)
        return
    unit, weights = turn.unit, choice.weights
    price = {}
    for s in choice.move:
        links = (unit - weights.before) * int(turn.write[s])
        links += (unit - weights.after) * int(turn.read[s])
        price[s] = max(1, links // unit, int(LEAST_PRICE * turn.read[s]))
    largest = max(incumbent.problem.remat.size[s] for s in choice.move)
    for left, margin in zip(range(len(MARGINS), 0, -1), MARGINS, strict=True):
        if incumbent.done:
            return
        share = (deadline - clock.monotonic()) / left
        inner = incumbent.budget - margin * largest
        if inner >= incumbent.problem.remat.floor or margin == 0:
            _search(incumbent, choice.move, price, inner, clock.monotonic() + share, seed)


def _search(
    incumbent: Incumbent,
    move: frozenset[int],
    price: dict[int, int],
    inner: int,
    deadline: float,
    seed: int,
) -> RematSolution:
    """Order the reduced problem within ``inner`` bytes, and place the transfers."""
    problem = incumbent.problem
    tier = tiers(problem, move)
    reduced = reduce(problem.remat, {s: price.get(s, 1) for s in tier})
    seconds = max(0.1, deadline - clock.monotonic())
    found = solve_remat(reduced.remat, inner, time_limit=seconds, seed=seed, gap=2e-3)
    plan = skeleton(problem.remat, reduced, found.sequence)
    for outs_first in (True, False):
        incumbent.offer(place(problem, plan, tier, incumbent.budget, outs_first), "reduction")
    return found


def tiers(problem: TransferProblem, move: Iterable[int]) -> dict[int, int]:
    """A tier for each storage: the fastest with room for all that goes there, largest first."""
    size = problem.remat.size
    room = [1 << 62 if t.capacity is None else t.capacity for t in problem.tiers]
    chosen = {}
    for s in sorted(move, key=lambda s: (-size[s], s)):
        took = [t.write_time(size[s]) + t.read_time(size[s]) for t in problem.tiers]
        for i in sorted(range(len(took)), key=took.__getitem__):
            if size[s] <= room[i]:
                chosen[s] = i
                room[i] -= size[s]
                break
    return chosen
