"""Plans of one rank's stages, tighter and tighter until all that it holds fits its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .budget import Budget
from .errors import InfeasibleBudget
from .passes.split import SplitStep
from .passes.stages import Stage
from .plan import Plan, Recompute
from .planning import Options, plan_step, rewrite, with_replays
from .runtime.pipelining import SCHEDULES, Action
from .stage_memory import StageParts, rank_peak
from .stage_times import Seconds, stage_seconds
from .trace import trace_joint

# Fractions of a stage's unoptimised peak that are tried, by halving, until a rank's budget holds.
TRIES = 7


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
            time_limit=options.time_limit / TRIES / len(stages),
        )

    def fit(self, budget: Budget) -> RankPlan:
        """The plan with least recomputation that was found within the budget, or the smallest."""
        free = self._plan(None)
        limit = budget.resolve(free.peak_bytes)
        free = replace(free, limit=limit)
        if not free.short:
            return free
        low, high, best, least = 0.0, 1.0, None, free
        for _ in range(TRIES):
            share = (low + high) / 2
            try:
                found = self._plan(share)
            except InfeasibleBudget:
                low = share
                continue
            found = replace(found, limit=limit, free_peak_bytes=free.peak_bytes)
            least = min(least, found, key=lambda f: f.peak_bytes)
            if found.short:
                high = share
            else:
                best, low = found, share
        return best or least

    def _plan(self, share: float | None) -> RankPlan:
        plans, parts = {}, {}
        seconds: dict[int, Seconds] = {}
        options = replace(self.options, budget=Budget.parse(share))
        for s, stage in self.stages.items():
            step = plan_step(stage.joint, stage.forward_outputs, 0, options)
            plans[s] = step.plan
            operators = trace_joint(stage.joint, stage.forward_outputs).operators
            costs = with_replays(options.costs(list(operators)))
            seconds[s] = stage_seconds(stage, step.graphs, costs, self.splits)
            parts[s] = StageParts(stage, step.graphs, costs, self.splits)
        peak = self.static + rank_peak(self.order, parts, self.arrived)
        return RankPlan(plans, seconds, self.static, peak, peak, None)
