"""Where to cut a step into stages, and how each rank meets its budget: decided together.

`solvers.partition` proposes cuts by an estimate of memory; each is then planned exactly. What a
rank lacks or has left tells by how much its estimate was wrong, and the next proposal knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch.fx as fx

from ..budget import Budget
from ..errors import InfeasibleBudget, TraceError
from ..passes.stages import Stage, cut
from ..planning import Options, with_replays
from ..runtime.pipelining import SCHEDULES, actions, arrivals, ranks_of
from ..storages import tensor_bytes
from ..trace import trace_joint
from .cuts import NO_LIMIT, Draft, Drafts, forward_outputs, gradient_sizes
from .fit import RankFitter, RankPlan
from .pipeline_plan import PipelinePlan, trace_hash
from .times import BANDWIDTH, least_seconds, step_seconds

#: Cuts that are planned exactly, and with a plan: the fastest is taken.
_MOST_TRIED, _ENOUGH = 8, 3
_ROUNDING = 1e-9
# By how much all ranks' estimates may be over their budgets, one after the other: estimates err
# upwards.
_OVER = (1.0, 1.2, 1.5, 2.0, 3.0)


def plan_pipeline(
    joint: fx.GraphModule,
    budgets: Sequence[Budget],
    schedule: str,
    microbatches: int,
    static_bytes: Callable[[Sequence[Sequence[Stage]]], Sequence[int]],
    weight_bytes: Callable[[str], int],
    options: Options,
    cuts: Sequence[int] | None = None,
) -> PipelinePlan:
    """Plan a step over ``len(budgets)`` ranks.

    Parameters
    ----------
    joint : fx.GraphModule
        Of one microbatch.
    budgets : sequence of Budget
        Of each rank.
    schedule : str
    microbatches : int
    static_bytes : callable
        What each rank holds throughout, given the stages of each.
    weight_bytes : callable
        What it holds throughout for one parameter.
    options : Options
        Costs, solver and time limit; its budget is not read.
    cuts : sequence of int, optional
        Given, they are not chosen.

    Raises
    ------
    InfeasibleBudget
        No cut was found with which every rank meets its budget.
    TraceError
        A value that crosses the given cuts, or a buffer, cannot be shared by stages.
    """
    planner = _Planner(joint, budgets, schedule, microbatches, static_bytes, options)
    if cuts is None:
        sizes = gradient_sizes(joint)
        state = sum(weight_bytes(n) - 2 * size for n, size in sizes.items())
        return planner.choose(state / max(1, sum(sizes.values())))
    plan, found = planner.plan(cuts, planner.least_seconds(), options.time_limit)
    planner.check(found)
    return plan


class _Planner:
    """Plans cuts exactly, and seeks those that are best."""

    def __init__(
        self,
        joint: fx.GraphModule,
        budgets: Sequence[Budget],
        schedule: str,
        microbatches: int,
        static_bytes: Callable[[Sequence[Sequence[Stage]]], Sequence[int]],
        options: Options,
    ) -> None:
        self.joint, self.budgets = joint, budgets
        self.schedule, self.microbatches = schedule, microbatches
        self.static_bytes, self.options = static_bytes, options
        self.ranks = ranks_of(schedule, len(budgets))
        self.orders = actions(schedule, len(budgets), microbatches)
        operators = trace_joint(joint, forward_outputs(joint)).operators
        costs = with_replays(options.costs(list(operators)))
        self.costs = {node.name: cost for node, cost in costs.items()}

    def least_seconds(self) -> float:
        """Of a step, whatever the cuts."""
        work = sum(cost.seconds for cost in self.costs.values())
        _, each, splits = SCHEDULES[self.schedule]
        in_a_row = each == 1 and not splits
        return least_seconds(work, len(self.budgets), self.microbatches, in_a_row)

    def choose(self, state_bytes: float) -> PipelinePlan:
        """The fastest of some plans within all budgets."""
        shape = (self.schedule, len(self.budgets), self.microbatches, state_bytes)
        drafts = Drafts(self.joint, self.costs, *shape, self.options.time_limit / 4)
        proposals = _Proposals(drafts, [b.bytes for b in self.budgets])
        share = self.options.time_limit / _ENOUGH
        plans: list[PipelinePlan] = []
        failed: list[list[RankPlan]] = []
        errors: list[TraceError] = []
        for draft in proposals:
            try:
                plan, found = self.plan(draft.cuts, proposals.bound, share)
            except TraceError as error:
                errors.append(error)
                continue
            proposals.learn(draft, plan, found)
            if any(rank.short for rank in found):
                failed.append(found)
            else:
                plans.append(plan)
                if len(plans) == _ENOUGH or not any(rank.pays for rank in found):
                    break
        if plans:
            return min(plans, key=lambda plan: plan.step_seconds)
        if not failed:
            raise errors[0]
        least = min(failed, key=lambda found: sum(rank.short for rank in found))
        self.check(least)
        raise AssertionError("a plan that failed is short of nothing")

    def check(self, found: Sequence[RankPlan]) -> None:
        """Raise InfeasibleBudget if some rank is over its limit."""
        short, rank = max((plan.short, r) for r, plan in enumerate(found))
        if short:
            limit = found[rank].limit
            assert limit is not None
            raise InfeasibleBudget(limit, found[rank].peak_bytes, device=f"rank {rank}")

    def plan(
        self, cuts: Sequence[int], bound: float, seconds: float
    ) -> tuple[PipelinePlan, list[RankPlan]]:
        """Each rank's plan with these cuts, over its limit or not, sought for so many seconds."""
        stages = cut(self.joint, cuts)
        options = replace(self.options, time_limit=seconds / len(self.budgets))
        count = range(len(self.budgets))
        own = [{s: stages[s] for s, r in enumerate(self.ranks) if r == rank} for rank in count]
        static = self.static_bytes([list(mine.values()) for mine in own])
        found = []
        for rank, budget in enumerate(self.budgets):
            arrived = arrivals(self.orders, self.ranks, rank)
            shape = (self.orders[rank], arrived, static[rank], self.schedule, options)
            found.append(RankFitter(own[rank], *shape).fit(budget))
        plans = {s: plan for rank in found for s, plan in rank.plans.items()}
        took = self._seconds(stages, found)
        plan = PipelinePlan(
            self.schedule,
            self.microbatches,
            tuple(cuts),
            self.ranks,
            tuple(plans[s] for s in range(len(stages))),
            tuple(rank.limit for rank in found),
            tuple(rank.resident_bytes for rank in found),
            tuple(rank.peak_bytes for rank in found),
            took,
            self._lower_bound(bound, took),
            trace_hash(self.joint),
        )
        return plan, found

    def _lower_bound(self, bound: float, seconds: float) -> float:
        """The larger of the chain's and the row's; one that the plan beat was none."""
        found = (b for b in (bound, self.least_seconds()) if b <= seconds * (1 + _ROUNDING))
        return min(seconds, max(found, default=0.0))

    def _seconds(self, stages: Sequence[Stage], found: Sequence[RankPlan]) -> float:
        """Of the step, with what crosses the cuts."""

        def link(stage: Stage, names: Sequence[str]) -> float:
            return sum(tensor_bytes(stage.values[n]) for n in names) / BANDWIDTH

        each = {s: seconds for rank in found for s, seconds in rank.seconds.items()}
        return step_seconds(
            self.orders,
            self.ranks,
            [each[s] for s in range(len(stages))],
            [link(s, s.sent) for s in stages[:-1]],
            [link(s, s.gradients_received) for s in stages[:-1]],
        )


class _Proposals:
    """Cuts, each once: the fastest of all, then the fastest within what each rank may take.

    Attributes
    ----------
    bound : float
        Seconds of a step that no cuts beat.
    """

    def __init__(self, drafts: Drafts, limits: Sequence[int | None]) -> None:
        self.drafts, self.limits = drafts, limits
        self.roomy, self.bound = drafts.roomy()
        self.ratio = [1.0] * len(limits)  # of the estimate to the exact peak
        self.most: list[float] = [NO_LIMIT] * len(limits)  # what proved to be too much
        self.seconds = math.inf  # of the best plan yet
        self.seen: set[tuple[int, ...]] = set()

    def __iter__(self) -> Iterator[Draft]:
        draft: Draft | None = self.roomy or self._even()
        while draft is not None and len(self.seen) < _MOST_TRIED:
            self.seen.add(draft.cuts)
            yield draft
            draft = self._next()

    def learn(self, draft: Draft, plan: PipelinePlan, found: Sequence[RankPlan]) -> None:
        """How far the estimate was from the exact plan, and what was too much for a rank."""
        if not any(rank.short for rank in found):
            self.seconds = min(self.seconds, plan.step_seconds)
        for r, rank in enumerate(found):
            if draft is self.roomy:
                self.ratio[r] = draft.peaks[r] / max(1, rank.free_peak_bytes)
            elif rank.short and draft.peaks[r]:
                less = draft.peaks[r] - rank.short * self.ratio[r]
                self.most[r] = min(self.most[r], less)

    def _next(self) -> Draft | None:
        if all(limit is None for limit in self.limits):
            return None
        for over in _OVER:
            memory = [
                NO_LIMIT if limit is None else int(min(self.most[r], over * limit * self.ratio[r]))
                for r, limit in enumerate(self.limits)
            ]
            for draft in self.drafts.within(memory):
                if draft.cuts not in self.seen and draft.seconds < self.seconds:
                    return draft
        return None

    def _even(self) -> Draft:
        """Where there are fewer pieces than stages: equal numbers of operators."""
        stages, count = len(self.drafts.ranks_of), len(self.drafts.names)
        cuts = tuple(round(s * count / stages) for s in range(1, stages))
        return Draft(cuts, 0.0, (0,) * self.drafts.ranks)
