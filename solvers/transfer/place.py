"""When to ask for each transfer, and when to wait for it.

Each copy out is asked for as soon as the value is there, and waited for when its bytes are needed
or when it is done anyway; each copy in is the same thing read backwards in time. So one greedy
sweep serves both: `drain`. It keeps the memory profile exact and stalls only where the budget
leaves no other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .problem import Action, TransferProblem
from .skeleton import Copy, Skeleton


@dataclass(frozen=True)
class Request:
    """A transfer to be placed.

    Attributes
    ----------
    ready : int
        The link may begin after this run; -1: at once.
    held : int
        Through this run the bytes are there anyway; beyond it until the transfer is done.
    due : int
        It must be done before this run.
    size, took, link : int
        Bytes, time on the link, and which link.
    """

    ready: int
    held: int
    due: int
    size: int
    took: int
    link: int


def drain(
    time: Sequence[int], during: np.ndarray, budget: int, requests: Sequence[Request]
) -> list[int]:
    """The run before which each transfer is done.

    Parameters
    ----------
    time : sequence of int
        Duration of each run.
    during : int64[runs]
        Bytes during each run without what the requests hold; updated in place.
    budget : int
    requests : sequence of Request
        Served by each link in the order of ``ready``, and in the given order among equals.
    """
    count = len(time)
    asked: dict[int, list[int]] = {}
    for i, request in enumerate(requests):
        asked.setdefault(request.ready, []).append(i)
    done = [count] * len(requests)
    free: dict[int, int] = {}
    ends: dict[int, int] = {}  # of the transfers on their way
    now = 0

    def ask(p: int) -> None:
        for i in asked.get(p, ()):
            request = requests[i]
            begin = max(now, free.get(request.link, 0))
            free[request.link] = ends[i] = begin + request.took

    ask(-1)
    for p in range(count):
        for i, end in ends.items():
            if requests[i].due <= p:
                now = max(now, end)
        extra = sum(
            requests[i].size for i, end in ends.items() if end > now and requests[i].held < p
        )
        for i, end in sorted(ends.items(), key=lambda entry: entry[1]):
            if end > now:
                if during[p] + extra <= budget:
                    break
                now = end
                extra -= requests[i].size if requests[i].held < p else 0
            done[i] = p
            del ends[i]
        during[p] += extra
        now += time[p]
        ask(p)
    return done


def place(
    problem: TransferProblem,
    plan: Skeleton,
    tier: Mapping[int, int],
    budget: int,
    outs_first: bool = True,
) -> tuple[Action, ...]:
    """The schedule of ``plan`` with its transfers.

    Parameters
    ----------
    problem : TransferProblem
    plan : Skeleton
        Within the budget; else so is its peak, and transfers are not spread.
    tier : mapping from storage to int
        Where each loaded storage goes.
    budget : int
        Bytes.
    outs_first : bool
        Whether copies out or copies in get first pick of the free bytes.
    """
    time = [problem.remat.time[v] for v in plan.runs]
    during = plan.during.copy()
    loads = [c for c in plan.copies if c.loaded]
    moved = {c.storage for c in loads}
    source: dict[int, Copy] = {}
    for copy in plan.copies:
        if copy.storage in moved and not copy.loaded:
            source.setdefault(copy.storage, copy)
    order = sorted(moved, key=lambda s: (source[s].made, source[s].last))
    first_load = {c.storage: c for c in reversed(loads)}
    out = {s: source[s].last + 1 for s in order}
    load = {id(c): c.made for c in loads}

    def place_outs() -> None:
        requests = []
        for s in order:
            copy, t = source[s], problem.tiers[tier[s]]
            # What is overwritten costs its bytes from that very run on, if it is still leaving.
            held = copy.last - ((copy.last, s) in plan.overwritten)
            size, due = problem.remat.size[s], load[id(first_load[s])]
            requests.append(Request(copy.made, held, due, size, t.write_time(size), tier[s]))
        out.update(zip(order, drain(time, during, budget, requests), strict=True))
        for s in order:
            out[s] = min(out[s], load[id(first_load[s])])

    def place_loads() -> None:
        """In reversed time, where run ``p`` is run ``count - 1 - p``."""
        count = len(time)
        backwards = sorted(loads, key=lambda c: (-c.made, c.storage))
        previous: dict[int, int] = {}
        earliest = {}
        for copy in loads:
            s = copy.storage
            after_turn = plan.turn + 1 if plan.turn < copy.made else 0
            earliest[id(copy)] = max(after_turn, previous.get(s, 0), out[s])
            previous[s] = copy.made + 1
        requests = []
        for copy in backwards:
            t, size = problem.tiers[tier[copy.storage]], problem.remat.size[copy.storage]
            due = count - earliest[id(copy)]
            at = count - 1 - copy.made
            requests.append(Request(at, at, due, size, t.read_time(size), tier[copy.storage]))
        reverse = during[::-1]  # a view: `drain` updates it
        found = drain(time[::-1], reverse, budget, requests)
        for copy, gap in zip(backwards, found, strict=True):
            load[id(copy)] = max(earliest[id(copy)], min(copy.made, count - gap))

    for step in (place_outs, place_loads) if outs_first else (place_loads, place_outs):
        step()
    return _emit(plan, tier, source, out, loads, load)


def _emit(
    plan: Skeleton,
    tier: Mapping[int, int],
    source: Mapping[int, Copy],
    out: Mapping[int, int],
    loads: Sequence[Copy],
    load: Mapping[int, int],
) -> tuple[Action, ...]:
    """All actions in order: at each gap what is done leaves before what comes is allocated."""
    count = len(plan.runs)
    before: list[list[Action]] = [[] for _ in range(count + 1)]
    after: list[list[Action]] = [[] for _ in range(count)]
    for s, gap in sorted(out.items(), key=lambda entry: source[entry[0]].made):
        after[source[s].made].append(Action("out", s, tier[s]))
        before[max(gap, source[s].made + 1)].append(Action("out_done", s, tier[s]))
    for copy in sorted(loads, key=lambda c: c.made):
        before[load[id(copy)]].append(Action("in", copy.storage, tier[copy.storage]))
    for copy in loads:
        before[copy.made].append(Action("in_done", copy.storage, tier[copy.storage]))
    actions: list[Action] = []
    for p in range(count + 1):
        rank = {"out_done": 0, "in": 1, "in_done": 2}
        actions += sorted(before[p], key=lambda action: rank[action.kind])
        if p < count:
            actions += [Action("run", plan.runs[p]), *after[p]]
    return tuple(actions)
