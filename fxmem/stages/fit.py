"""Plans of one rank's stages, tighter and tighter until all that it holds fits its budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..budget import Budget
from ..errors import InfeasibleBudget
from ..passes.split import SplitStep
from ..passes.stages import Stage
from ..plan import Plan, Recompute
from ..planning import Options, plan_step, rewrite, with_replays
from ..runtime.pipelining import SCHEDULES, Action
from ..trace import trace_joint
from .memory import StageParts, rank_peak
from .times import Seconds, stage_seconds

#: Shares tried of what a microbatch keeps where nothing is recomputed: many are in flight, so
#: that keeping less of each may leave more for the one that runs.
SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
# Where none of them does, one microbatch is made as small as can be, by halving.
_HALVINGS = 6


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
    def recomputes(self) -> bool:
        """Does any stage run an operator twice?"""
        decisions = [d for plan in self.plans.values() for d in plan.decisions.values()]
        return any(isinstance(d, Recompute) for d in decisions)


def build(stage: Stage, plan: Plan, overwrite: bool) -> SplitStep:
    """The graphs of a stage as a plan lays them out."""
    trace = trace_joint(stage.joint, stage.forward_outputs)
    by_name = {n.name: n for n in trace.operators}
    return rewrite(trace, [by_name.get(name) for name in plan.sequence], overwrite)


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
        self.options = replace(
            options,
            reuse=options.reuse and not self.splits,
            time_limit=options.time_limit / len(SHARES) / len(stages),
        )

    def fit(self, budget: Budget) -> RankPlan:
        """The fastest plan that was found within the budget, or the smallest."""
        free, parts = self._plan({})
        limit = budget.resolve(free.peak_bytes)
        free = replace(free, limit=limit)
        if limit is None or not free.short:
            return free
        flight = _in_flight(self.order)
        kept = {s: part.kept for s, part in parts.items()}

        def others(share: float) -> int:
            """Kept by microbatches beside the one that runs."""
            sizes = {s: round(share * size) for s, size in kept.items()}
            return sum(flight[s] * size for s, size in sizes.items()) - min(sizes.values())

        one = max(plan.peak_bytes for plan in free.plans.values())
        beside = free.peak_bytes - one - others(1.0)  # residents, and values on their way
        found = [free]
        for share in SHARES:
            most = {s: round(share * size) for s, size in kept.items()}
            room = limit - beside - others(share)
            for _ in range(2):  # how much is beside is known better after a plan
                if room <= max(most.values()):
                    break
                try:
                    plan = self._plan({s: (room, most[s]) for s in most})[0]
                except InfeasibleBudget:
                    break
                found.append(replace(plan, limit=limit, free_peak_bytes=free.peak_bytes))
                if not found[-1].short:
                    break
                room -= found[-1].short
        within = [plan for plan in found if not plan.short]
        if not within:
            found += [replace(p, limit=limit) for p in self._smaller(free, limit)]
            within = [plan for plan in found if not plan.short]
        if within:
            return min(within, key=lambda plan: plan.total_seconds)
        return min(found, key=lambda plan: plan.peak_bytes)

    def _smaller(self, free: RankPlan, limit: int) -> Iterator[RankPlan]:
        """Plans of smaller and smaller microbatches, as far as the limit, whatever they keep."""
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            share = (low + high) / 2
            most = {s: round(share * plan.peak_bytes) for s, plan in free.plans.items()}
            try:
                plan = self._plan({s: (size, size) for s, size in most.items()})[0]
            except InfeasibleBudget:
                low = share
                continue
            yield replace(plan, free_peak_bytes=free.peak_bytes)
            if plan.peak_bytes > limit:
                high = share
            else:
                low = share

    def _plan(
        self, limits: Mapping[int, tuple[int, int]]
    ) -> tuple[RankPlan, dict[int, StageParts]]:
        """Plans with limits, by stage, of one microbatch's bytes: at most, and to be kept."""
        plans, parts = {}, {}
        seconds: dict[int, Seconds] = {}
        for s, stage in self.stages.items():
            options = self.options
            if s in limits:
                most, kept = limits[s]
                turn = max(0, most - kept)
                options = replace(options, budget=Budget.parse(most), turn_bytes=turn)
            step = plan_step(stage.joint, stage.forward_outputs, 0, options)
            plans[s] = step.plan
            operators = trace_joint(stage.joint, stage.forward_outputs).operators
            costs = with_replays(options.costs(list(operators)))
            seconds[s] = stage_seconds(stage, step.graphs, costs, self.splits)
            parts[s] = StageParts(stage, step.graphs, costs, self.splits)
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
