"""`solve`: which values to keep, compute again or move, in which order, and when to move them."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..remat import warm_up
from .bound import Choice, Turn, explore
from .exact import exact, small
from .incumbent import Incumbent, Progress
from .line import Line
from .problem import Action, TransferProblem
from .solution import TransferSolution

# Room below the budget for values on their way, in largest moved values.
MARGINS = (2, 0, 6)
# A load costs at least this share of its time: links are not free even where they are idle.
LEAST_PRICE = 0.05
# Candidates for what to move that are searched in full.
MOST = 4
# Shares of the compute time that the links may be taken, where not all can be hidden.
SHARES = (1.0, 0.6)
# Seconds to look for the least peak where nothing can fit.
SOON = 4.0
# Rounds without a better answer after which to end.
STALE = 6


def solve(
    problem: TransferProblem,
    budget: int | None,
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    start: Sequence[Action] | None = None,
    gap: float = 0.0,
    progress: Progress | None = None,
) -> TransferSolution:
    """A fast schedule within ``budget`` bytes.

    Parameters
    ----------
    problem : TransferProblem
        Its given order must be a valid schedule.
    budget : int or None
        Bytes in memory, residents included; None: no limit.
    time_limit : float
        Seconds, without those that compiling the kernels takes once on a machine. It ends before,
        where the answer is proved or nothing better turns up for a while.
    seed : int
        Equal seeds give equal answers, unless time runs out first.
    start : sequence of Action, optional
        A valid schedule to do better than, within the budget or not.
    gap : float
        An answer this close to the bound will do.
    progress : callable, optional
        Called as ``progress(seconds, makespan, peak, lower_bound)`` on each improvement.

    Returns
    -------
    TransferSolution
        Its actions pass `check` within the budget where its status is ``"optimal"`` or
        ``"feasible"``. Ctrl-C during the search returns the best so far.

    Raises
    ------
    ScheduleError
        ``start`` is not valid, or the operators' given order is not.
    """
    warm_up()
    writer = problem.remat.writer
    made = frozenset(s for s in problem.movable if writer[s] >= 0)
    problem = replace(problem, movable=made)  # residents stay
    incumbent = Incumbent(problem, 1 << 60 if budget is None else budget, gap, progress)
    deadline = incumbent.began + time_limit
    incumbent.raise_bound(problem.remat.base_time)
    incumbent.offer([Action("run", v) for v in range(problem.remat.count)], "given order")
    if start is not None:
        incumbent.offer(start, "start")
    if incumbent.done or problem.remat.count == 0:
        return incumbent.answer()
    turn = Turn(problem, incumbent.budget)
    infeasible = incumbent.budget < problem.remat.floor or not turn.fits()
    try:
        if infeasible:
            # How little is in reach is wanted all the same, and soon.
            line = Line(incumbent, tiers(problem, problem.movable), {}, 0, seed)
            line.begin(min(SOON, time_limit))
        else:
            _search(incumbent, turn, deadline, seed)
    except KeyboardInterrupt:
        return incumbent.answer(infeasible, interrupted=True)
    return incumbent.answer(infeasible)


def _search(incumbent: Incumbent, turn: Turn, deadline: float, seed: int) -> None:
    problem = incumbent.problem
    choices = explore(turn, 0.1 * (deadline - clock.monotonic()))
    incumbent.raise_bound(choices[0].bound)
    if small(problem):
        _exactly(incumbent, clock.monotonic() + 0.5 * (deadline - clock.monotonic()))
    candidates = _candidates(problem, turn, choices)
    lines = [line for choice in candidates for line in _lines(incumbent, turn, choice, seed)]
    half = clock.monotonic() + 0.5 * (deadline - clock.monotonic())
    _begin(incumbent, lines, half)
    if incumbent.best is None:  # what fits at the turn need not fit elsewhere
        rest = _lines(incumbent, turn, replace(turn.everything(), bytes=-1), seed)
        _begin(incumbent, rest, half + 0.5 * (deadline - half))
        lines += rest
    _go_on(incumbent, lines, deadline)


def _exactly(incumbent: Incumbent, deadline: float) -> None:
    """The full model, until the deadline."""
    makespan, actions = incumbent.best[:2] if incumbent.best else (0, None)
    left = deadline - clock.monotonic()
    problem, limit, bound = incumbent.problem, incumbent.budget, incumbent.bound
    found = exact(problem, limit, actions, makespan, bound, left)
    if found.actions is not None:
        incumbent.offer(found.actions, "exact")
    incumbent.raise_bound(found.bound)


def _begin(incumbent: Incumbent, lines: list[Line], deadline: float) -> None:
    """A first answer of each line."""
    for left, line in zip(range(len(lines), 0, -1), lines, strict=True):
        if incumbent.done:
            return
        line.begin((deadline - clock.monotonic()) / left)


def _go_on(incumbent: Incumbent, lines: list[Line], deadline: float) -> None:
    """From what they found first, the best lines most often, until nothing gets better."""
    stale = 0
    while stale < STALE and not incumbent.done:
        lines.sort(key=lambda line: line.value)
        before = lines[0].value
        for line in lines[: 1 if stale % 2 else 3]:
            if incumbent.done or clock.monotonic() > deadline - 0.1:
                return
            line.go_on(deadline)
        stale = 0 if min(line.value for line in lines) < before else stale + 1


def _candidates(
    problem: TransferProblem, turn: Turn, choices: Iterable[Choice]
) -> list[Choice | None]:
    """What to move, most promising first; None: nothing."""
    size = problem.remat.size
    fitting = [c for c in choices if c.bytes <= turn.capacity]
    everything = turn.everything()
    fitting.sort(key=lambda c: (c.makespan, sum(size[s] for s in c.move)))
    picked: dict[frozenset[int], Choice | None] = {}
    for choice in fitting:
        if len(picked) < MOST - 1:
            picked.setdefault(choice.move, choice)
    if not picked:
        picked[everything.move] = everything
    for choice in [c for c in (*picked.values(), everything) if c is not None]:
        for share in SHARES:
            part = _hidden(problem, turn, choice.move, share)
            if part and len(picked) < MOST - (frozenset() not in picked):
                picked.setdefault(part, replace(choice, move=part, bytes=-1))
    picked.setdefault(frozenset(), None)
    return list(picked.values())


def _hidden(
    problem: TransferProblem, turn: Turn, move: frozenset[int], share: float
) -> frozenset[int]:
    """What of ``move`` the links have time for within ``share`` of the compute time.

    Equal layers look alike to a cut, which moves all of them or none. First comes what took
    longest to compute for its time on the links, then what was made first: it is wanted last.
    """
    remat, part = problem.remat, set()
    room = [share * turn.forward, share * turn.backward]

    def worth(s: int) -> tuple[float, int]:
        links = int(turn.write[s] + turn.read[s] + turn.write_work[s] + turn.read_work[s])
        return -remat.time[remat.writer[s]] / max(1, links), remat.writer[s]

    for s in sorted(move, key=worth):
        left = [room[0] - int(turn.write[s]), room[1] - int(turn.read[s])]
        if min(left) >= 0:
            part.add(s)
            room = left
    return frozenset(part)


def _lines(incumbent: Incumbent, turn: Turn, choice: Choice | None, seed: int) -> list[Line]:
    """Lines of search with one set of storages to move, with more or less room to prefetch."""
    problem, floor = incumbent.problem, incumbent.problem.remat.floor
    if choice is None or not choice.move:
        return [Line(incumbent, {}, {}, incumbent.budget, seed)]
    links = turn.price(choice.weights) // turn.unit
    tolls = turn.write_work + turn.read_work
    least = np.maximum(LEAST_PRICE * turn.read, tolls).astype(np.int64)
    price = {s: max(1, int(links[s]), int(least[s])) for s in choice.move}
    largest = max(problem.remat.size[s] for s in choice.move)
    margins = MARGINS if choice.bytes >= 0 else (0,)
    rooms = [incumbent.budget - margin * largest for margin in margins]
    tier = tiers(problem, choice.move)
    return [
        Line(incumbent, tier, price, inner, seed)
        for inner, margin in zip(rooms, margins, strict=True)
        if inner >= floor or margin == 0
    ]


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
