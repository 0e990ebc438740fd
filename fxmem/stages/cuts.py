"""Ways to cut a step into the stages of a pipeline, by `solvers.partition`'s estimate."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch.fx as fx
from torch._functorch._aot_autograd.descriptors import GradAOTOutput, ParamAOTInput  # since 2.9

from ..costs import Cost
from ..passes.stage_homes import forward_operators, outputs
from ..runtime.pipelining import SCHEDULES, ranks_of
from ..solvers.partition import Device, PartitionSolution, partition
from ..trace import trace_joint
from .chain import FEWER, StageChain, stage_chain
from .times import BANDWIDTH

NO_LIMIT = 1 << 62
# Of each search, which mostly ends by itself: cuts that are no good cost more than this.
_LEAST_SECONDS = 5.0


@dataclass(frozen=True)
class Draft:
    """Cuts, and what the chain that was cut says of them.

    Attributes
    ----------
    cuts : tuple of int
        As of `passes.stages.cut`.
    seconds : float
        Of the step.
    peaks : tuple of int
        Bytes of each rank.
    """

    cuts: tuple[int, ...]
    seconds: float
    peaks: tuple[int, ...]


class Drafts:
    """Cuts a step, as often as asked.

    Parameters
    ----------
    joint : fx.GraphModule
        Of one microbatch.
    costs : mapping from name to Cost
        Of its operators.
    schedule : str
    ranks, microbatches : int
    state_bytes : float
        Bytes of optimizer state for each byte of gradient.
    time_limit : float
        Seconds of each search.
    """

    def __init__(
        self,
        joint: fx.GraphModule,
        costs: Mapping[str, Cost],
        schedule: str,
        ranks: int,
        microbatches: int,
        state_bytes: float,
        time_limit: float,
    ) -> None:
        self.trace = trace_joint(joint, forward_outputs(joint))
        self.costs = {n: costs[n.name] for n in self.trace.operators}
        self.names = [n.name for n in forward_operators(joint)]
        self.ranks, self.microbatches = ranks, microbatches
        self.state_bytes, self.time_limit = state_bytes, time_limit
        self.ranks_of = ranks_of(schedule, ranks)
        self.each = SCHEDULES[schedule][1]
        # The solver knows no schedule of two stages a rank but the interleaved one. Otherwise
        # each stage is given its part of the rank's memory, and cut as if it were alone there.
        self.together = self.each == 1 or (schedule == "interleaved" and not microbatches % ranks)
        self.schedule = schedule if self.together else "1f1b"
        self.chains: dict[int, StageChain] = {}

    def within(self, memory: Sequence[int]) -> list[Draft]:
        """Cuts whose estimates are within each rank's bytes, the fastest first; often none."""
        found: list[Draft] = []
        for pieces in FEWER:
            solution = self._solve(pieces, memory)
            if not solution.stage_plans:
                continue
            found.append(self._read(self._chain(pieces), solution))
            if not any(any(stage.options) for stage in solution.stage_plans):
                break  # nothing runs again: longer items could not be better
        return sorted(found, key=lambda draft: draft.seconds)

    def roomy(self) -> tuple[Draft | None, float]:
        """The fastest cuts where memory does not matter, and seconds that no cuts beat."""
        solution = self._solve(FEWER[0], [NO_LIMIT] * self.ranks)
        work = sum(cost.seconds for cost in self.costs.values()) * self.microbatches / self.ranks
        bound = max(work, solution.lower_bound) if self.together else work
        if not solution.stage_plans:
            return None, work
        return self._read(self._chain(FEWER[0]), solution), bound

    def _solve(self, pieces: int, memory: Sequence[int]) -> PartitionSolution:
        if self.together:
            room, chunks = list(memory), self.each
        else:
            room, chunks = [memory[r] // self.each for r in self.ranks_of], 1
        devices = tuple(Device(max(0, m), bandwidth=BANDWIDTH) for m in room)
        problem = replace(self._chain(pieces).problem, devices=devices)
        limit = max(_LEAST_SECONDS, self.time_limit / len(FEWER))
        shape = (self.schedule, self.microbatches, limit, chunks)
        return partition(problem, None, *shape, ordered=True)

    def _chain(self, pieces: int) -> StageChain:
        if pieces not in self.chains:
            one = [Device(NO_LIMIT)]
            self.chains[pieces] = stage_chain(self.trace, self.costs, one, self.state_bytes, pieces)
        return self.chains[pieces]

    def _read(self, chain: StageChain, solution: PartitionSolution) -> Draft:
        place = {n.name: i for i, group in enumerate(chain.forward) for n in group}
        items = [place[name] for name in self.names]
        cuts = tuple(bisect_left(items, start) for start in solution.cuts)
        peaks = [0] * self.ranks
        for rank, stage in zip(self.ranks_of, solution.stage_plans, strict=True):
            peaks[rank] = stage.peak + (0 if self.together else peaks[rank])
        return Draft(cuts, solution.step_seconds, tuple(peaks))


def forward_outputs(joint: fx.GraphModule) -> int:
    """How many outputs of a joint graph with descriptors are no gradients."""
    descs = joint.graph.output_node().meta["desc"]  # None: an input without a gradient
    return sum(d is not None and not isinstance(d, GradAOTOutput) for d in descs)


def gradient_sizes(joint: fx.GraphModule) -> dict[str, int]:
    """Bytes of each parameter's gradient, by the parameter's name."""
    return {
        desc.grad_of.target: node.meta["val"].nbytes
        for node, desc in outputs(joint)
        if isinstance(desc, GradAOTOutput) and isinstance(desc.grad_of, ParamAOTInput)
    }
