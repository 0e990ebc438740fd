"""What a session keeps free of its budget, from what its steps measured over their plans."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch.fx as fx

from .errors import BudgetWarning, InfeasibleBudget
from .plan import Plan
from .planning import Options, PlannedStep, plan_step
from .scheduling import CLOSE

log = logging.getLogger("fxmem")

# Share of the budget that may be spared so that an arena fits it.
_MOST_SPARED = 0.03
# Bytes of a budget from which on fresh memory is worth a search.
_LARGE = 32 << 20
# Spared is a multiple of this part of the budget.
_SPARED_STEPS = 400
# Of a step's time, by fewer page faults: three to nine per cent were seen.
_ARENA_SAVES = 0.03


@dataclass
class Margin:
    """Bytes kept free of the budget.

    Attributes
    ----------
    reserve_bytes : int
        What a step measured over its plan.
    spare_bytes : int
        So that an arena fits.
    spares : int
        How often more may be spared.
    whole : dict
        Graph hash -> plan with nothing spared.
    """

    reserve_bytes: int = 0
    spare_bytes: int = 0
    spares: int = 2
    whole: dict[str, Plan] = field(default_factory=dict)

    def plan_step(
        self, joint: fx.GraphModule, forward_outputs: int, resident_bytes: int, options: Options
    ) -> PlannedStep:
        """As of `planning.plan_step`, with bytes to spare for the arena where that is feasible.

        Raises
        ------
        InfeasibleBudget
        """
        reserved = replace(options, reserve_bytes=self.reserve_bytes)
        if self.spare_bytes:
            sparing = replace(reserved, spare_bytes=self.spare_bytes)
            with suppress(InfeasibleBudget):
                step = plan_step(joint, forward_outputs, resident_bytes, sparing)
                if step.plan.seconds <= self._worth(step.plan):
                    step.plan = self._with_bound(step.plan)
                    return step
            self.spare_bytes = self.spares = 0
        return plan_step(joint, forward_outputs, resident_bytes, reserved)

    def _worth(self, plan: Plan) -> float:
        """Seconds that the step may take with an arena, to be no slower than without."""
        known = self.whole.get(plan.graph_hash)
        return (1 + _ARENA_SAVES) * known.seconds if known else plan.seconds

    def _with_bound(self, plan: Plan) -> Plan:
        """The bound of a smaller budget is none of this one's."""
        known = self.whole.get(plan.graph_hash)
        bound = known.lower_bound_seconds if known else plan.seconds / (1 + plan.overhead)
        optimal = plan.status == "optimal" and plan.seconds <= bound
        return replace(plan, lower_bound_seconds=bound, status="optimal" if optimal else "feasible")

    def wants_another(self, over: int, plan: Plan) -> bool:
        """Is it worth planning anew: tighter, so that an arena fits, or as before if none does?

        The arena saves page faults, more than a plan costs that is a little tighter.

        Parameters
        ----------
        over : int
            Bytes by which the step with its arena would pass the budget.
        plan : Plan
            Has a budget.
        """
        assert plan.budget_bytes is not None
        # Packings differ a little from run to run; the tighter budget, and with it the name of
        # the schedule on disk, should not.
        step = max(1, plan.budget_bytes // _SPARED_STEPS)
        wanted = self.spare_bytes + -(-(over + over // 4) // step) * step
        within_reach = wanted <= _MOST_SPARED * plan.budget_bytes
        # A small step gains little by it, and a search for transfers begins anew each time: there
        # only where the search ends soon.
        large = plan.budget_bytes >= _LARGE and not plan.transfers
        within_reach &= large or plan.gap <= CLOSE
        if self.spares == 0 or not within_reach or plan.overhead == 0:
            log.info("the arena takes %d bytes more than the budget: it is not used", over)
            whole = self.whole.get(plan.graph_hash, plan)
            in_vain = self.spare_bytes > 0 and plan.seconds > (1 + CLOSE) * whole.seconds
            if in_vain:
                self.spare_bytes = self.spares = 0
            return in_vain
        self.spare_bytes, self.spares = wanted, self.spares - 1
        self.whole.setdefault(plan.graph_hash, plan)
        return True

    def learn(self, step: PlannedStep, peaks: Sequence[int]) -> bool:
        """Note what a step measured; True, with a warning, where that is over its budget."""
        plan, (peak_above_start,) = step.plan, peaks
        step.measured = max(step.measured or 0, plan.resident_bytes + peak_above_start)
        budget = plan.budget_bytes
        log.info("peak %d measured, %d predicted", step.measured, plan.peak_bytes)
        if budget is None or step.measured <= budget:
            return False
        # At least what the plan is short of: what it left free of the budget did not help.
        over, short = step.measured - budget, step.measured - plan.peak_bytes
        self.reserve_bytes = max(self.reserve_bytes + over, short)
        warnings.warn(
            f"fxmem: a step took {step.measured} bytes, {over} over its budget; it is planned "
            "anew with what was learnt before the next one runs.",
            BudgetWarning,
            stacklevel=3,
        )
        return True

    def learn_devices(self, step: PlannedStep, peaks: Sequence[int]) -> bool:
        """The same as `learn`, for each of several devices with its own budget."""
        shares = step.plan.devices
        measured = [s.resident_bytes + p for s, p in zip(shares, peaks, strict=True)]
        step.measured = sum(measured)
        over = {}
        for share, found in zip(shares, measured, strict=True):
            log.info("%s: peak %d measured, %d predicted", share.device, found, share.peak_bytes)
            if share.budget_bytes is not None and found > share.budget_bytes:
                over[share.device] = found - share.budget_bytes
        if not over:
            return False
        self.reserve_bytes += max(over.values())
        told = ", ".join(f"{extra} bytes on {device}" for device, extra in over.items())
        warnings.warn(
            f"fxmem: a step took {told} over the budget; it is planned anew with what was "
            "learnt before the next one runs.",
            BudgetWarning,
            stacklevel=3,
        )
        return True
