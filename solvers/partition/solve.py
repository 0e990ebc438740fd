"""Cuts, devices and recomputation together: best first, on a dynamic program's bound.

The bound of a plan is that of the pivot stage (DAPPLE, Fan et al. 2021, section 4): the first
microbatch on its way through the stages before, forward and back, and all microbatches in the
stage itself. The rest of a prefix of stages is bounded by a dynamic program over (stage, first
item, devices left), in which every stage recomputes as little as its own budget allows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, prod
from time import monotonic
from typing import Any

from .check import check
from .model import Model, Placed
from .problem import Device, PartitionProblem
from .solution import PartitionSolution, Status

_MOST_SUBSETS = 4096  # of devices left; with more, they stay in the order given
_EQUAL = 1e-12  # relative; sums of the same numbers in another order


def partition(
    problem: PartitionProblem,
    budgets: Sequence[int] | Mapping[int, int] | None = None,
    schedule: str = "1f1b",
    microbatches: int = 8,
    time_limit: float = 60.0,
    chunks: int = 1,
    ordered: bool = False,
) -> PartitionSolution:
    """Cut a chain into one stage (or ``chunks``) a device so that the step is shortest.

    Parameters
    ----------
    problem : PartitionProblem
    budgets : sequence or mapping of int, optional
        Bytes of each device; the problem's own where left out.
    schedule : str
        One of `schedules.SCHEDULES`.
    microbatches : int
    time_limit : float
        Seconds of search.
    chunks : int
        Stages a device, for ``"interleaved"``.
    ordered : bool
        Keep the devices in the order given.

    Returns
    -------
    PartitionSolution
        ``"optimal"`` only where every other cut, order of devices (unless ``ordered``) and choice
        of options was ruled out: with several chunks a device, or more than a dozen devices that
        all differ (they are then taken in the order given), a plan is at most ``"feasible"``.

    Raises
    ------
    ValueError
        A schedule that is not known, or numbers that do not suit it.
    """
    if isinstance(budgets, Mapping):
        budgets = [budgets.get(i, d.memory) for i, d in enumerate(problem.devices)]
    if budgets is not None:
        pairs = zip(problem.devices, budgets, strict=True)
        devices = tuple(replace(device, memory=int(b)) for device, b in pairs)
        problem = replace(problem, devices=devices)
    model = Model(problem, schedule, microbatches, chunks)
    return _Search(model, monotonic() + time_limit, ordered).run()


class _Search:
    def __init__(self, model: Model, deadline: float, ordered: bool):
        self.model, self.deadline, self.ordered = model, deadline, ordered
        devices = model.problem.devices
        self.kinds = list(dict.fromkeys(devices))
        counts = [devices.count(kind) for kind in self.kinds]
        few = prod(count + 1 for count in counts) <= _MOST_SUBSETS
        self.free = few and model.chunks == 1 and not ordered
        self.complete = self.free or (ordered and model.chunks == 1)  # is nothing left out?
        self.start = tuple(counts) if self.free else ()
        self.ideal = Device(
            max(d.memory for d in devices),
            max(d.speed for d in devices),
            max(d.bandwidth for d in devices),
            min(d.latency for d in devices),
        )
        self.rest = lru_cache(maxsize=None)(self._rest)
        self.best: tuple[Placed, ...] | None = None
        self.seconds = inf

    def run(self) -> PartitionSolution:
        model = self.model
        bound, done = self._explore()
        bound = max(bound, self._work())
        shape = (model.schedule, model.microbatches)
        if self.best is None:
            whole = done and self.complete and _exact(model)
            status: Status = "infeasible" if whole or bound == inf else "unknown"
            return PartitionSolution(status, (), inf, 0.0, bound, *shape)
        draft = PartitionSolution("feasible", model.plan(self.best), inf, 0.0, bound, *shape)
        seen = check(model.problem, draft)
        stages = tuple(
            replace(stage, peak=seen.peaks[s % model.ranks])
            for s, stage in enumerate(draft.stage_plans)
        )
        closed = seen.step_seconds <= bound * (1 + 1e-9) or (
            done and self.complete and _exact(model)
        )
        return replace(
            draft,
            status="optimal" if closed else "feasible",
            stage_plans=stages,
            step_seconds=seen.step_seconds,
            bubble=seen.bubble,
            lower_bound=seen.step_seconds if closed else min(bound, seen.step_seconds),
        )

    def _work(self) -> float:
        """All the work, shared by all the devices."""
        forward, backward, _ = self.model.way(0, len(self.model.problem.items))
        speeds = sum(device.speed for device in self.model.problem.devices)
        return self.model.microbatches * (forward + backward) / speeds

    def _explore(self) -> tuple[float, bool]:
        """Best first; the bound of what is left, and whether nothing is."""
        first = self._rest(0, 0, None, self.start)
        heap: list[tuple[Any, ...]] = [(first, 0, 0, 0, 0.0, 0.0, self.start, ())]
        ticket, root = 0, first
        while heap and heap[0][0] < self.seconds * (1 - _EQUAL):
            if monotonic() > self.deadline:
                return heap[0][0], False
            _, depth, _, start, before, worst, left, placed = heapq.heappop(heap)
            if -depth == self.model.stages:
                self._offer(placed)
                continue
            for stage, bound, through, most, after in self._next(
                -depth, start, before, worst, left, placed
            ):
                if bound < self.seconds * (1 - _EQUAL):
                    ticket += 1
                    state = (bound, depth - 1, ticket, stage.stop, through, most, after)
                    heapq.heappush(heap, (*state, (*placed, stage)))
        if not self.complete:
            return root, False
        return max(root, self.seconds), True

    def _next(
        self,
        s: int,
        start: int,
        before: float,
        worst: float,
        left: tuple[int, ...],
        placed: tuple[Placed, ...],
    ) -> Iterator[tuple[Placed, float, float, float, tuple[int, ...]]]:
        """Stages that can follow: with bound, way through, worst pivot, and devices left."""
        devices = self.model.problem.devices
        last = devices[placed[-1].device] if placed else None
        if self.free:
            used = {p.device for p in placed}
            numbers = [
                next(d for d, dev in enumerate(devices) if dev == kind and d not in used)
                for kind, count in zip(self.kinds, left, strict=True)
                if count
            ]
        else:
            numbers = [s % self.model.ranks]
        for number in numbers:
            device = devices[number]
            link = self.model.link(last, device, start) if last and self.model.ranks > 1 else 0.0
            after = _without(left, self.kinds.index(device)) if self.free else ()
            for stop in self._stops(s, start):
                cost = self.model.least_seconds(s, start, stop, device.speed, device.memory)
                if cost is None:
                    continue
                arrive = before + link
                most = max(worst, arrive + self.model.microbatches * cost[1])
                key = self.kinds.index(device) if self.free else None
                bound = max(most, arrive + cost[0] + self.rest(s + 1, stop, key, after))
                if bound < inf:
                    yield Placed(number, start, stop), bound, arrive + cost[0], most, after

    def _rest(self, s: int, start: int, last: int | None, left: tuple[int, ...]) -> float:
        """Least seconds from the end of what comes before to the end of the worst pivot."""
        if s == self.model.stages:
            return 0.0
        found = inf
        for kind in range(len(self.kinds)) if self.free else [-1]:
            if self.free and not left[kind]:
                continue
            device = self.kinds[kind] if self.free else self._given(s)
            one = None if s == 0 else (self.kinds[last] if last is not None else self._given(s - 1))
            link = self.model.link(one, device, start) if one and self.model.ranks > 1 else 0.0
            for stop in self._stops(s, start):
                cost = self.model.least_seconds(s, start, stop, device.speed, device.memory)
                if cost is None:
                    continue
                after = _without(left, kind) if self.free else ()
                following = cost[0] + self.rest(s + 1, stop, kind if self.free else None, after)
                pivot = max(self.model.microbatches * cost[1], following)
                found = min(found, link + pivot)
        return found

    def _given(self, s: int) -> Device:
        """The device of a stage where they are ordered; else one as good as any."""
        return self.model.problem.devices[s % self.model.ranks] if self.ordered else self.ideal

    def _stops(self, s: int, start: int) -> range:
        """Where stage ``s`` can end: one item at least for each stage after it."""
        items, after = len(self.model.problem.items), self.model.stages - 1 - s
        return range(start + 1, items - after + 1) if after else range(items, items + 1)

    def _offer(self, placed: tuple[Placed, ...]) -> None:
        """Take a plan if it is better, with its neighbours: one cut, one item further."""
        seconds = self.model.evaluate(placed)
        if seconds >= self.seconds:
            return
        self.best, self.seconds = placed, seconds
        improved = True
        while improved and monotonic() < self.deadline:
            improved = False
            for other in _neighbours(self.best):
                seconds = self.model.evaluate(other)
                if seconds < self.seconds:
                    self.best, self.seconds, improved = other, seconds, True
                    break


def _neighbours(placed: tuple[Placed, ...]) -> Iterator[tuple[Placed, ...]]:
    for s in range(len(placed) - 1):
        for shift in (-1, 1):
            cut = placed[s].stop + shift
            if placed[s].start < cut < placed[s + 1].stop:
                pair = placed[s]._replace(stop=cut), placed[s + 1]._replace(start=cut)
                yield (*placed[:s], *pair, *placed[s + 2 :])


def _without(left: tuple[int, ...], kind: int) -> tuple[int, ...]:
    return (*left[:kind], left[kind] - 1, *left[kind + 1 :])


def _exact(model: Model) -> bool:
    """Each stage chooses for itself, from a frontier of which nothing was thinned."""
    return model.chunks == 1 and not model.frontiers.thinned
