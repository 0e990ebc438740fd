"""`solve`: which values to keep, compute again or move, in which order, and when to move them."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence

from .bound import Choice, Turn, Weights, explore
from .exact import exact, small
from .incumbent import Incumbent
from .line import Line
from .problem import Action, TransferProblem
from .solution import TransferSolution

# Room below the budget for values on their way, in largest moved values.
MARGINS = (2, 0, 6)
# A load costs at least this share of its time: links are not free even where they are idle.
LEAST_PRICE = 0.05
# Candidates for what to move that are searched in full.
MOST = 4
# Rounds without a better answer after which to end.
STALE = 6


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
        line = Line(incumbent, tiers(problem, everything), {}, 0, seed)
        line.begin(min(4.0, deadline - clock.monotonic()))
        return incumbent.answer(began, infeasible=True)
    choices = explore(turn, 0.1 * time_limit)
    incumbent.raise_bound(choices[0].bound)
    candidates = _candidates(problem, turn, choices)
    if small(problem):
        _exactly(incumbent, clock.monotonic() + 0.5 * (deadline - clock.monotonic()))
    lines = [line for choice in candidates for line in _lines(incumbent, turn, choice, seed)]
    _run(incumbent, lines, deadline)
    return incumbent.answer(began)


def _exactly(incumbent: Incumbent, deadline: float) -> None:
    """The full model, until the deadline."""
    makespan, actions = incumbent.best[:2] if incumbent.best else (0, None)
    left = deadline - clock.monotonic()
    problem, limit, bound = incumbent.problem, incumbent.budget, incumbent.bound
    found = exact(problem, limit, actions, makespan, bound, left)
    if found.actions is not None:
        incumbent.offer(found.actions, "exact")
    incumbent.raise_bound(found.bound)


def _run(incumbent: Incumbent, lines: list[Line], deadline: float) -> None:
    """Half of the time to find out what to move, half to go on with the best."""
    half = clock.monotonic() + 0.5 * (deadline - clock.monotonic())
    for left, line in zip(range(len(lines), 0, -1), lines, strict=True):
        if incumbent.done:
            return
        line.begin((half - clock.monotonic()) / left)
    stale = 0
    while stale < STALE:
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
    everything = turn.choose(Weights(turn.unit, turn.unit, 1))
    fitting.sort(key=lambda c: (c.makespan, sum(size[s] for s in c.move)))
    picked: dict[frozenset[int], Choice | None] = {}
    for choice in fitting:
        if len(picked) < MOST - 1:
            picked.setdefault(choice.move, choice)
    if not picked:
        picked[everything.move] = everything
    picked.setdefault(frozenset(), None)
    return list(picked.values())


def _lines(incumbent: Incumbent, turn: Turn, choice: Choice | None, seed: int) -> list[Line]:
    """Lines of search with one set of storages to move, with more or less room to prefetch."""
    problem, floor = incumbent.problem, incumbent.problem.remat.floor
    if choice is None or not choice.move:
        return [Line(incumbent, {}, {}, incumbent.budget, seed)]
    unit, weights = turn.unit, choice.weights
    price = {}
    for s in choice.move:
        links = (unit - weights.before) * int(turn.write[s])
        links += (unit - weights.after) * int(turn.read[s])
        price[s] = max(1, links // unit, int(LEAST_PRICE * turn.read[s]))
    largest = max(problem.remat.size[s] for s in choice.move)
    rooms = [incumbent.budget - margin * largest for margin in MARGINS]
    tier = tiers(problem, choice.move)
    return [
        Line(incumbent, tier, price, inner, seed)
        for inner, margin in zip(rooms, MARGINS, strict=True)
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
