"""Plans of one rank's stages, tighter and tighter until all that it holds fits its budget."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..budget import Budget
from ..errors import InfeasibleBudget
from ..moving import order_of
from ..passes.split import SplitStep
from ..passes.stages import Stage
from ..plan import Offload, Plan, Recompute
from ..planning import Options, plan_step, rewrite, with_replays
from ..runtime.pipelining import SCHEDULES, Action
from ..trace import trace_joint
from .memory import StageParts, rank_peak
from .times import Seconds, stage_seconds

#: Shares tried of what a microbatch keeps where nothing is recomputed: many are in flight, so
#: that keeping less of each may leave more for the one that runs.
SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1, 0.03, 0.0)
# Plans made for each of them: the room that is left is known only by what a plan keeps.
_TRIES = 4
# What was found for a rank, by what it does: a budget that an error named as the least feasible
# must be met when it is asked for, whatever the next search finds.
_FOUND: dict[Hashable, list[RankPlan]] = {}
_MOST_REMEMBERED = 32


@dataclass(frozen=True)
class RankPlan:
    """The stages of one rank.

    Attributes
    ----------
    plans : dict of int to Plan
        By number of the stage.
    seconds : dict of int to mapping
        Of each stage's actions.
    resident_bytes, peak_bytes : int
        Predicted. The peak is over the limit where none within it was found.
    free_peak_bytes : int
        Where nothing is recomputed.
    limit : int or None
    """

    plans: dict[int, Plan]
    seconds: dict[int, Seconds]
    resident_bytes: int
    peak_bytes: int
    free_peak_bytes: int
    limit: int | None

    @property
    def short(self) -> int:
        """Bytes over the limit."""
        return 0 if self.limit is None else max(0, self.peak_bytes - self.limit)

    @property
    def total_seconds(self) -> float:
        """Of a microbatch in all stages of the rank."""
        every = [each.get(kind, 0.0) for each in self.seconds.values() for kind in "FIW"]
        return sum(every) + sum(each["B"] for each in self.seconds.values() if "I" not in each)

    @property
    def pays(self) -> bool:
        """Does any stage run an operator twice, or move a value?"""
        decisions = [d for plan in self.plans.values() for d in plan.decisions.values()]
        return any(isinstance(d, Recompute | Offload) for d in decisions)


def build(stage: Stage, plan: Plan, overwrite: bool) -> SplitStep:
    """The graphs of a stage as a plan lays them out."""
    trace = trace_joint(stage.joint, stage.forward_outputs)
    return rewrite(trace, order_of(trace, plan), overwrite)


class RankFitter:
    """Fits stages to the budget of their rank.

    Parameters
    ----------
    stages : dict of int to Stage
        By number.
    order : sequence of Action
        What the rank does.
    arrived : mapping
        As of `runtime.pipelining.arrivals`.
    static : int
        Bytes held throughout.
    schedule : str
    options : Options
        The time limit is that of all the searches here.
    """

    def __init__(
        self,
        stages: dict[int, Stage],
        order: Sequence[Action],
        arrived: Mapping[Action, Sequence[Action]],
        static: int,
        schedule: str,
        options: Options,
    ) -> None:
        self.stages, self.order, self.arrived, self.static = stages, order, arrived, static
        self.splits = SCHEDULES[schedule][2]
        self.options = replace(options, reuse=options.reuse and not self.splits)
        # A search that may also move values has more to choose from and is given no more time:
        # what recomputation alone finds is not to be lost by it.
        offloads = dict.fromkeys((None, options.offload))
        searches = len(offloads) * len(SHARES) * len(stages)
        self.ways = [
            replace(self.options, offload=offload, time_limit=options.time_limit / searches)
            for offload in offloads
        ]

    def fit(self, budget: Budget) -> RankPlan:
        """The fastest plan that was found within the budget, or the smallest."""
        free, parts = self._plan(self.ways[0], {})
        limit = budget.resolve(free.peak_bytes)
        free = replace(free, limit=limit)
        if limit is None or not free.short:
            return free
        tighter = self._tighter(free, {s: part.kept for s, part in parts.items()}, limit)
        found = [free, *_FOUND.get(self._key(free), ()), *tighter]
        found = [replace(p, limit=limit, free_peak_bytes=free.peak_bytes) for p in found]
        self._remember(free, found)
        within = [plan for plan in found if not plan.short]
        if within:
            return min(within, key=lambda plan: plan.total_seconds)
        return min(found, key=lambda plan: plan.peak_bytes)

    def _tighter(self, free: RankPlan, kept: Mapping[int, int], limit: int) -> Iterator[RankPlan]:
        """Plans in which each microbatch keeps less and less of what it keeps in ``free``."""
        flight = _in_flight(self.order)

        def others(share: float) -> int:
            """Kept by microbatches beside the one that runs."""
            sizes = {s: round(share * size) for s, size in kept.items()}
            return sum(flight[s] * size for s, size in sizes.items()) - min(sizes.values())

        one = max(plan.peak_bytes for plan in free.plans.values())
        beside = free.peak_bytes - one - others(1.0)  # residents, and values on their way
        for way in self.ways:
            for share in SHARES:
                most = {s: round(share * size) for s, size in kept.items()}
                yield from self._narrow(most, limit - beside - others(share), limit, way)

    def _remember(self, free: RankPlan, found: Sequence[RankPlan]) -> None:
        """Keep those that no other beats in both bytes and seconds."""
        best: list[RankPlan] = []
        for plan in sorted(found, key=lambda p: (p.peak_bytes, p.total_seconds)):
            if not best or plan.total_seconds < best[-1].total_seconds:
                best.append(plan)
        while len(_FOUND) >= _MOST_REMEMBERED:
            del _FOUND[next(iter(_FOUND))]
        _FOUND[self._key(free)] = best

    def _key(self, free: RankPlan) -> Hashable:
        """The same for ranks that do the same, at the same cost."""
        stages = [
            (s, p.graph_hash, p.sequence, tuple(free.seconds[s].items()))
            for s, p in free.plans.items()
        ]
        how = self.options.offload, self.options.solver
        return tuple(stages), tuple(self.order), self.static, free.peak_bytes, how

    def _narrow(
        self, most: Mapping[int, int], room: int, limit: int, way: Options
    ) -> Iterator[RankPlan]:
        """Plans of microbatches that keep at most so much, until one fits or none takes less.

        How much is held beside the one that runs, so how much ``room`` it has, is known better
        after a plan; where it cannot do with that, it takes what it must.
        """
        least = max(most.values()) + 1
        for _ in range(_TRIES):
            room = max(room, least)
            try:
                plan = self._plan(way, {s: (room, kept) for s, kept in most.items()})[0]
            except InfeasibleBudget as error:
                if (error.minimum_bytes or 0) <= room:
                    return
                least = room = error.minimum_bytes or 0
                continue
            yield plan
            if plan.peak_bytes <= limit or room == least:
                return
            room -= plan.peak_bytes - limit

    def _plan(
        self, way: Options, limits: Mapping[int, tuple[int, int]]
    ) -> tuple[RankPlan, dict[int, StageParts]]:
        """Plans with limits, by stage, of one microbatch's bytes: at most, and to be kept."""
        plans, parts = {}, {}
        seconds: dict[int, Seconds] = {}
        for s, stage in self.stages.items():
            options = way
            if s in limits:
                most, kept = limits[s]
                options = replace(way, budget=Budget.parse(most), kept_bytes=kept)
            step = plan_step(stage.joint, stage.forward_outputs, 0, options)
            plans[s] = step.plan
            graphs = build(stage, step.plan, options.reuse)
            operators = trace_joint(stage.joint, stage.forward_outputs).operators
            costs = with_replays(options.costs(list(operators)))
            seconds[s] = stage_seconds(stage, graphs, costs, self.splits)
            parts[s] = StageParts(stage, graphs, costs, self.splits)
        peak = self.static + rank_peak(self.order, parts, self.arrived)
        return RankPlan(plans, seconds, self.static, peak, peak, None), parts


def _in_flight(order: Sequence[Action]) -> dict[int, int]:
    """Most microbatches of which each stage keeps values at once."""
    last = "W" if any(kind == "W" for kind, _, _ in order) else "B"
    now: dict[int, int] = {}
    most: dict[int, int] = {}
    for kind, s, _ in order:
        now[s] = now.get(s, 0) + (kind == "F") - (kind == last)
        most[s] = max(most.get(s, 0), now[s])
    return most
