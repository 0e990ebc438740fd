"""The plan of a step over several ranks, and what all of them must agree on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch.fx as fx

from ..costs import operator_key
from ..plan import Plan


@dataclass(frozen=True)
class PipelinePlan:
    """A step over several ranks.

    Attributes
    ----------
    schedule : str
    microbatches : int
    cuts : tuple of int
        Number of the forward operator with which each stage but the first begins.
    ranks : tuple of int
        The rank of each stage.
    stage_plans : tuple of Plan
        Of one microbatch of each stage, without what the rank holds throughout.
    budget_bytes : tuple of int or None
    resident_bytes, peak_bytes : tuple of int
        Of each rank, predicted.
    step_seconds : float
        Of the whole step, predicted: the schedule's own list of actions, simulated.
    lower_bound_seconds : float
        No cut between the items of the chain that was cut does better, whatever the budgets;
        of given cuts, and where the exact plan is faster than that, the work on all ranks alike.
    trace_hash : str
    """

    schedule: str
    microbatches: int
    cuts: tuple[int, ...]
    ranks: tuple[int, ...]
    stage_plans: tuple[Plan, ...]
    budget_bytes: tuple[int | None, ...]
    resident_bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    step_seconds: float
    lower_bound_seconds: float
    trace_hash: str

    @property
    def gap(self) -> float:
        """How far, at most, the step is above the best, as a share of the bound."""
        if self.lower_bound_seconds <= 0:
            return 0.0
        return self.step_seconds / self.lower_bound_seconds - 1

    @property
    def hash(self) -> str:
        """What every rank must agree on."""
        told = (self.schedule, self.microbatches, self.cuts, self.ranks, self.trace_hash)
        digest = hashlib.sha256(repr(told).encode())
        for plan in self.stage_plans:
            digest.update(repr((plan.sequence, plan.transfers)).encode())
        return digest.hexdigest()[:16]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Numbers of the stages of a rank."""
        return tuple(s for s, r in enumerate(self.ranks) if r == rank)


def trace_hash(joint: fx.GraphModule) -> str:
    """Hash of a joint graph with the names of its nodes and what its inputs are."""
    digest = hashlib.sha256()
    for node in joint.graph.nodes:
        wiring = [a.name for a in node.all_input_nodes]
        told = (node.op, node.name, operator_key(node), wiring, str(node.meta.get("desc")))
        digest.update(repr(told).encode())
    return digest.hexdigest()[:16]
