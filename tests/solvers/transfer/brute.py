"""Brute force: the least makespan over all schedules whatever, for up to about 7 operators.

Labels over what has run, what is held and what is on its way, each with the times of processor and
links; a label is dropped only where another in the same state is no later in any time. A copy is
given up only by an action that makes or reads it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, combinations, count
from typing import NamedTuple

from fxmem.solvers.transfer import Action, TransferProblem


class State(NamedTuple):
    """Between two actions; sets of storages, for one tier."""

    ran: frozenset[int]
    held: frozenset[int]  # the latest copy is in memory
    crossed: frozenset[int]  # it was made before the turn, which has run
    leaving: frozenset[int]
    apart: frozenset[int]  # what leaves is not the latest copy
    there: frozenset[int]
    coming: frozenset[int]
    early: frozenset[int]  # it was asked for before the turn, which has run


class Times(NamedTuple):
    """When the processor goes on, the links are free, and each transfer arrives."""

    now: int
    out: int
    back: int
    arrivals: tuple[tuple[int, int], ...]

    def later(self, now: int) -> Times:
        """The processor goes on at ``now``; what has passed does not matter."""
        arrivals = tuple((s, max(now, t)) for s, t in self.arrivals)
        return Times(now, max(now, self.out), max(now, self.back), arrivals)

    def no_later(self, other: Times) -> bool:
        """In no component."""
        mine = (*self[:3], *(t for _, t in self.arrivals))
        theirs = (*other[:3], *(t for _, t in other.arrivals))
        return all(a <= b for a, b in zip(mine, theirs, strict=True))


def brute(problem: TransferProblem, budget: int) -> tuple[int, tuple[Action, ...]] | None:
    """Least makespan within ``budget`` and a schedule; None: none fits. At most one tier."""
    nothing: frozenset[int] = frozenset()
    start = State(*[nothing] * 8)
    seen: dict[State, list[Times]] = {}
    serial = count()
    queue = [(0, next(serial), start, Times(0, 0, 0, ()), ())]
    stored = {s for s in problem.remat.keep if problem.remat.writer[s] >= 0}
    while queue:
        now, _, state, times, path = heapq.heappop(queue)
        if any(t.no_later(times) for t in seen.get(state, ())):
            continue
        seen.setdefault(state, []).append(times)
        complete = len(state.ran) == problem.remat.count and stored <= state.held
        if complete and not state.leaving and not state.coming:
            return now, path
        for action, new, at in _next(problem, budget, state, times):
            if not any(t.no_later(at) for t in seen.get(new, ())):
                heapq.heappush(queue, (at.now, next(serial), new, at, (*path, action)))
    return None


def _next(
    problem: TransferProblem, budget: int, state: State, times: Times
) -> Iterator[tuple[Action, State, Times]]:
    size, room = problem.remat.size, budget - problem.remat.resident_bytes
    used = sum(size[s] for s in chain(state.held, state.apart, state.coming))
    for v in range(problem.remat.count):
        yield from _run(problem, room - used, state, times, v)
    for s in problem.movable if problem.tiers else ():
        tier = problem.tiers[0]
        arrivals = dict(times.arrivals)
        if s in state.held and s not in state.leaving and s not in state.there:
            on_tier = sum(size[r] for r in state.there | state.leaving) + size[s]
            if tier.capacity is None or on_tier <= tier.capacity:
                end = times.out + tier.write_time(size[s])
                ahead = _sorted(arrivals | {s: end})
                new = state._replace(leaving=state.leaving | {s})
                at = times._replace(out=end, arrivals=ahead)
                yield Action("out", s), new, at.later(times.now + tier.write_work(size[s]))
        if s in state.leaving:
            end = arrivals.pop(s)
            new = state._replace(
                leaving=state.leaving - {s}, apart=state.apart - {s}, there=state.there | {s}
            )
            at = times._replace(arrivals=_sorted(arrivals)).later(end)
            yield Action("out_done", s), new, at
            yield Action("out_done", s), new._replace(there=state.there), at
            if s not in state.apart:
                given_up = new._replace(held=state.held - {s}, crossed=state.crossed - {s})
                yield Action("out_done", s), given_up, at
        if s in state.there and s not in state.coming and used + size[s] <= room:
            end = times.back + tier.read_time(size[s])
            new = state._replace(coming=state.coming | {s})
            at = times._replace(back=end, arrivals=_sorted(arrivals | {s: end}))
            yield Action("in", s), new, at.later(times.now + tier.read_work(size[s]))
        if s in state.coming:
            end = arrivals.pop(s)
            crossed = state.crossed | {s} if s in state.early else state.crossed - {s}
            new = state._replace(
                held=state.held | {s},
                crossed=crossed,
                coming=state.coming - {s},
                early=state.early - {s},
                apart=state.apart | (state.leaving & {s}),
            )
            at = times._replace(arrivals=_sorted(arrivals)).later(end)
            yield Action("in_done", s), new, at
            yield Action("in_done", s), new._replace(there=state.there - {s}), at


def _run(
    problem: TransferProblem, room: int, state: State, times: Times, v: int
) -> Iterator[tuple[Action, State, Times]]:
    remat = problem.remat
    again = v in state.ran
    reads = {s for s in remat.reads[v] if remat.writer[s] >= 0}
    writes = set(remat.writes[v])
    if not reads <= state.held or (again and (v in remat.once or v == remat.turn)):
        return
    before = remat.ordered[: remat.ordered.index(v)] if v in remat.ordered else ()
    if not again and not set(before) <= state.ran:
        return
    fresh = writes & state.held  # an older copy is given up before, by whoever read it last
    if fresh:
        return
    needed = sum(remat.size[s] for s in writes) + remat.workspace[v]
    first = remat.size[remat.writes[v][0]] if writes else 0
    apart = state.apart | (state.leaving & writes)
    # What leaves cannot be given up yet, unless it is another copy.
    choice = sorted((reads - (state.leaving - state.apart)) | writes)
    for dropped in map(set, chain(*(combinations(choice, k) for k in range(len(choice) + 1)))):
        may = [
            s
            for s in remat.reuse[v]
            if s in dropped & reads and s not in state.crossed and remat.size[s] == first
        ]
        if needed - (first if may else 0) > room:
            continue
        held = (state.held | writes) - dropped
        crossed, early = state.crossed, state.early
        if v == remat.turn:
            crossed, early = state.held, state.coming
        new = state._replace(
            ran=state.ran | {v},
            held=frozenset(held),
            crossed=frozenset(crossed & held),
            apart=frozenset(apart),
            early=frozenset(early),
        )
        yield Action("run", v), new, times.later(times.now + remat.time[v])


def _sorted(arrivals: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(arrivals.items()))
