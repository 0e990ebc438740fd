"""A problem under one schedule: what stages cost, and what whole plans do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from .frontier import Frontiers
from .problem import Device, PartitionProblem, link_seconds
from .schedules import actions, in_flight
from .simulate import compiled, step_seconds
from .solution import StagePlan


class Placed(NamedTuple):
    """A stage: device, items ``start:stop``."""

    device: int
    start: int
    stop: int


class Model:
    """What the search asks about stages and plans."""

    def __init__(self, problem: PartitionProblem, schedule: str, microbatches: int, chunks: int):
        self.problem, self.schedule = problem, schedule
        self.microbatches, self.chunks = microbatches, chunks
        self.ranks = len(problem.devices)
        self.stages = self.ranks * chunks
        self.split = schedule == "zero-bubble"
        self.flight = [0] * self.stages
        for order in actions(schedule, self.ranks, microbatches, chunks):
            for held in in_flight(order):
                for stage, count in held.items():
                    self.flight[stage] = max(self.flight[stage], count)
        self.graph = compiled(schedule, self.ranks, microbatches, chunks)
        self.frontiers, self.optimistic = Frontiers(problem), Frontiers(problem, optimistic=True)
        items = problem.items
        self._forward = list(accumulate((i.forward for i in items), initial=0.0))
        self._backward = list(accumulate((i.backward for i in items), initial=0.0))
        self._weight = list(accumulate((i.weight for i in items), initial=0.0))
        self.room = lru_cache(maxsize=None)(self._room)
        self.least_seconds = lru_cache(maxsize=None)(self._least_seconds)

    def _room(self, start: int, stop: int, flight: int, memory: int) -> int:
        """Bytes left for what the options keep and take."""
        entry, leave = self.problem.entry(start), self.problem.entry(stop)
        return memory - self.problem.resident(start, stop) - (flight + 1) * entry - leave

    def _least_seconds(
        self, stage: int, start: int, stop: int, speed: float, memory: int
    ) -> tuple[float, float] | None:
        """At least the seconds of a microbatch on the way through the stage, and all of them."""
        flight = self.flight[stage]
        room = self.room(start, stop, flight, memory)
        position = self.optimistic.fastest(start, stop, flight, room)
        if position is None:
            return None
        forward, extra = self.way(start, stop), self.optimistic.of(start, stop).extra[position]
        work = forward[0] + forward[1] + float(extra)
        through = forward[0] if self.split else work
        return through / speed, work / speed

    def way(self, start: int, stop: int) -> tuple[float, float, float]:
        """Forward, backward, and its part for parameters: seconds at speed 1."""
        f, b, w = self._forward, self._backward, self._weight
        return f[stop] - f[start], b[stop] - b[start], w[stop] - w[start]

    def link(self, one: Device, other: Device, cut: int) -> float:
        """Seconds over a cut, there and back as far as a bound counts on it."""
        once = link_seconds(one, other, self.problem.entry(cut))
        return once if self.split else 2 * once

    def choose(self, placed: Sequence[Placed]) -> list[tuple[int, float]] | None:
        """For each stage the position in its frontier, and the extra seconds; None if none fits.

        With several stages a rank, room left by the others' leanest choices is given out in
        order.
        """
        chosen = [(0, 0.0)] * len(placed)
        for rank in range(self.ranks):
            mine = list(range(rank, len(placed), self.ranks))
            memory = self.problem.devices[placed[rank].device].memory
            rooms = [self.room(*placed[s][1:], self.flight[s], memory) for s in mine]
            need = [self._least(placed[s], self.flight[s]) for s in mine]
            room = memory - sum(memory - r for r in rooms)
            for k, s in enumerate(mine):
                own = room - sum(need[k + 1 :])
                start, stop = placed[s][1:]
                position = self.frontiers.fastest(start, stop, self.flight[s], own)
                if position is None:
                    return None
                found = self.frontiers.of(start, stop)
                chosen[s] = position, float(found.extra[position])
                room -= self.flight[s] * int(found.kept[position]) + int(found.peak[position])
        return chosen

    def _least(self, placed: Placed, flight: int) -> int:
        found = self.frontiers.of(placed.start, placed.stop)
        return int((flight * found.kept + found.peak).min())

    def evaluate(self, placed: Sequence[Placed]) -> float:
        """Seconds of the whole step; infinite where it does not fit."""
        chosen = self.choose(placed)
        if chosen is None:
            return float("inf")
        devices = self.problem.devices
        seconds = np.zeros((4, len(placed)))
        for s, (stage, (_, extra)) in enumerate(zip(placed, chosen, strict=True)):
            forward, backward, weight = self.way(stage.start, stage.stop)
            speed = devices[stage.device].speed
            whole = backward + extra
            seconds[:, s] = np.array([forward, whole, whole - weight, weight]) / speed
        link = np.array(
            [
                link_seconds(devices[a.device], devices[b.device], self.problem.entry(b.start))
                if a.device != b.device
                else 0.0
                for a, b in pairwise(placed)
            ]
        )
        return float(step_seconds(self.graph, seconds, link)) + self._ties(placed)

    def _ties(self, placed: Sequence[Placed]) -> float:
        devices, total = self.problem.devices, 0.0
        for tie in self.problem.ties:
            held = sorted({p.device for p in placed for i in tie.items if p.start <= i < p.stop})
            for other in held[1:]:
                total += 2 * link_seconds(devices[held[0]], devices[other], tie.bytes)
        return total

    def plan(self, placed: Sequence[Placed]) -> tuple[StagePlan, ...]:
        """The stages in full, peaks not yet filled in."""
        chosen = self.choose(placed)
        if chosen is None:
            raise ValueError("the stages do not fit")
        plans = []
        for s, (stage, (position, extra)) in enumerate(zip(placed, chosen, strict=True)):
            forward, backward, _ = self.way(stage.start, stage.stop)
            speed = self.problem.devices[stage.device].speed
            options = self.frontiers.choice(stage.start, stage.stop, position)
            times = forward / speed, (backward + extra) / speed
            plans.append(StagePlan(*stage, options, *times, self.flight[s], 0))
        return tuple(plans)
