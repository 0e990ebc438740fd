"""Replay a partition by its schedule's own list of actions; shares nothing with the solver."""

from __future__ import annotations

from typing import NamedTuple

from .problem import PartitionProblem, link_seconds
from .schedules import Action, actions
from .solution import PartitionSolution, StagePlan


class Replay(NamedTuple):
    """What a step takes: seconds, idle share, and bytes at most on each rank."""

    step_seconds: float
    bubble: float
    peaks: tuple[int, ...]


def check(problem: PartitionProblem, solution: PartitionSolution) -> Replay:
    """Replay a solution.

    Raises
    ------
    ValueError
        The stages are no partition of the chain over the devices, or the schedule hangs.
    """
    stages = solution.stage_plans
    ranks = len(problem.devices)
    chunks = len(stages) // ranks
    bounds = [0, *(stage.stop for stage in stages)]
    if [stage.start for stage in stages] != bounds[:-1] or bounds[-1] != len(problem.items):
        raise ValueError("the stages are not the chain in order")
    if any(stage.start >= stage.stop for stage in stages):
        raise ValueError("a stage is empty")
    placed = [stage.device for stage in stages]
    if sorted(placed[:ranks]) != list(range(ranks)) or placed != placed[:ranks] * chunks:
        raise ValueError("each device takes one stage of every round")
    if any(len(stage.options) != stage.stop - stage.start for stage in stages):
        raise ValueError("each item takes one option")
    lists = actions(solution.schedule, ranks, solution.microbatches, chunks)
    peaks = tuple(_peak(problem, stages, order) for order in lists)
    end, busy = _replay(problem, stages, lists)
    step = end + _ties(problem, stages)
    return Replay(step, 1 - busy / (ranks * step) if step else 0.0, peaks)


def _replay(
    problem: PartitionProblem, stages: tuple[StagePlan, ...], lists: tuple[tuple[Action, ...], ...]
) -> tuple[float, float]:
    """Time of the last action's end, and the sum of all actions' seconds."""
    done: dict[tuple[str, int, int], float] = {}
    clock, place, busy = [0.0] * len(lists), [0] * len(lists), 0.0
    while any(p < len(order) for p, order in zip(place, lists, strict=True)):
        moved = False
        for rank, order in enumerate(lists):
            while place[rank] < len(order):
                action = order[place[rank]]
                ready = _ready(problem, stages, done, action)
                if ready is None:
                    break
                seconds = _seconds(problem, stages[action.stage], action.kind)
                clock[rank] = max(clock[rank], ready) + seconds
                busy += seconds
                done[action[1:]] = clock[rank]
                place[rank] += 1
                moved = True
        if not moved:
            raise ValueError("the schedule hangs: every rank waits for another")
    return max(clock), busy


def _ready(
    problem: PartitionProblem,
    stages: tuple[StagePlan, ...],
    done: dict[tuple[str, int, int], float],
    action: Action,
) -> float | None:
    """When the action's input has arrived; None if it has not been made."""
    _, kind, s, m = action
    if kind == "W":
        return done.get(("I", s, m))
    if kind == "F":
        if s == 0:
            return 0.0
        source, cut = ("F", s - 1, m), stages[s].start
    elif s == len(stages) - 1:
        return done.get(("F", s, m))
    else:
        source, cut = (kind, s + 1, m), stages[s].stop
    if source not in done:
        return None
    here, there = stages[s].device, stages[source[1]].device
    if here == there:
        return done[source]
    devices = problem.devices
    return done[source] + link_seconds(devices[here], devices[there], problem.entry(cut))


def _seconds(problem: PartitionProblem, stage: StagePlan, kind: str) -> float:
    total = 0.0
    for item, option in zip(problem.items[stage.start : stage.stop], stage.options, strict=True):
        extra = item.options[option].extra
        total += {
            "F": item.forward,
            "B": item.backward + extra,
            "I": item.backward - item.weight + extra,
            "W": item.weight,
        }[kind]
    return total / problem.devices[stage.device].speed


def _peak(
    problem: PartitionProblem, stages: tuple[StagePlan, ...], order: tuple[Action, ...]
) -> int:
    """Most bytes on a rank: residents, what is in flight, one item's peak, buffers of links."""
    mine = sorted({action.stage for action in order})
    held = {i for s in mine for i in range(stages[s].start, stages[s].stop)}
    resident = sum(problem.items[i].resident for i in held)
    resident += sum(tie.resident for tie in problem.ties if held & set(tie.items))
    kept, running = {}, 0
    for s in mine:
        stage = stages[s]
        chosen = [
            problem.items[stage.start + k].options[option] for k, option in enumerate(stage.options)
        ]
        ends = problem.entry(stage.start), problem.entry(stage.stop)
        kept[s] = ends[0] + sum(option.kept for option in chosen)
        running = max(running, sum(ends) + max(option.peak for option in chosen))
    closing = "W" if any(action.kind == "W" for action in order) else "B"
    most = now = 0
    for action in order:
        now += kept[action.stage] if action.kind == "F" else 0
        most = max(most, now)
        now -= kept[action.stage] if action.kind == closing else 0
    return resident + most + running


def _ties(problem: PartitionProblem, stages: tuple[StagePlan, ...]) -> float:
    """Seconds to sum the gradients of parameters that lie on several devices, and share them."""
    total = 0.0
    for tie in problem.ties:
        holders = sorted({g.device for g in stages for i in tie.items if g.start <= i < g.stop})
        first, *others = [problem.devices[d] for d in holders]
        total += 2 * sum(link_seconds(first, other, tie.bytes) for other in others)
    return total
