"""Where to cut a step into stages, and how each stage meets its rank's budget."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch.fx as fx

from .budget import Budget
from .costs import Cost, operator_key
from .errors import InfeasibleBudget
from .passes.split import SplitStep
from .passes.stages import Stage, cut, forward_operators
from .plan import Plan
from .planning import Options, plan_step, rewrite
from .runtime.pipelining import SCHEDULES, Action, actions, arrivals, ranks_of
from .runtime.stage import split_backward
from .solvers.partition import NoPartition, partition_chain
from .storages import map_storages, tensor_bytes
from .trace import trace_joint

# Fractions of a stage's unoptimised peak that are tried, by halving, until a rank's budget holds.
_TRIES = 7
# Cuts are sought between so many pieces of about equal cost.
_PIECES = 160


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
    trace_hash: str

    @property
    def hash(self) -> str:
        """What every rank must agree on."""
        told = (self.schedule, self.microbatches, self.cuts, self.ranks, self.trace_hash)
        digest = hashlib.sha256(repr(told).encode())
        for plan in self.stage_plans:
            digest.update(repr(plan.sequence).encode())
        return digest.hexdigest()[:16]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Numbers of the stages of a rank."""
        return tuple(s for s, r in enumerate(self.ranks) if r == rank)


@dataclass(frozen=True)
class Footprint:
    """Bytes that one stage holds for one microbatch, beside what the rank holds throughout.

    Attributes
    ----------
    peak : int
        While it is computed, what it keeps included and what it received left out.
    kept : int
        From forward to backward.
    delayed : int
        From the first part of backward to the second.
    received, gradients_received, gradients_sent : int
        Values that cross its cuts.
    sent : int
        Made here for later stages and not kept; what else is sent is held until backward anyway.
    """

    peak: int
    kept: int
    delayed: int
    received: int
    sent: int
    gradients_received: int
    gradients_sent: int


def trace_hash(joint: fx.GraphModule) -> str:
    """Hash of a joint graph with the names of its nodes and what its inputs are."""
    digest = hashlib.sha256()
    for node in joint.graph.nodes:
        wiring = [a.name for a in node.all_input_nodes]
        told = (node.op, node.name, operator_key(node), wiring, str(node.meta.get("desc")))
        digest.update(repr(told).encode())
    return digest.hexdigest()[:16]


def build(stage: Stage, plan: Plan, overwrite: bool) -> SplitStep:
    """The graphs of a stage as a plan lays them out."""
    trace = trace_joint(stage.joint, stage.forward_outputs)
    by_name = {n.name: n for n in trace.operators}
    return rewrite(trace, [by_name.get(name) for name in plan.sequence], overwrite)


def choose_cuts(
    joint: fx.GraphModule,
    costs: Mapping[fx.Node, Cost],
    stages: int,
    weight_bytes: Callable[[str], int],
    capacity: Sequence[int | None],
) -> tuple[int, ...]:
    """Cuts at which the slowest stage is fastest, and weights fit; `solvers.partition` to come.

    Parameters
    ----------
    joint : fx.GraphModule
    costs : mapping
        Of its forward operators.
    stages : int
    weight_bytes : callable
        Bytes held throughout for a parameter.
    capacity : sequence of int or None
        For the weights of each stage.
    """
    operators = forward_operators(joint)
    seconds = [costs[n].seconds for n in operators]
    pieces = _pieces(seconds, max(_PIECES, stages))
    load, size, seen = [], [], set()
    for start, stop in pieces:
        load.append(round(1e9 * sum(seconds[start:stop])) + 1)
        held = 0
        for node in operators[start:stop]:
            for source in node.all_input_nodes:
                while source.op == "call_function" and len(source.all_input_nodes) == 1:
                    source = source.all_input_nodes[0]
                desc = source.meta.get("desc") if source.op == "placeholder" else None
                target = getattr(desc, "target", None)
                if target is not None and target not in seen:
                    seen.add(target)
                    held += weight_bytes(target)
        size.append(held)
    if all(c is None for c in capacity) or len(set(capacity)) == 1:
        limit = capacity[0]
        try:
            parts = partition_chain(load, stages, size, limit)
        except NoPartition:
            parts = partition_chain(load, stages)
    else:
        parts = tuple(_uneven(load, size, capacity))
    firsts = {p: i for i, p in reversed(list(enumerate(parts)))}
    ends = [pieces[firsts[s]][0] if s in firsts else len(operators) for s in range(1, stages)]
    return tuple(ends)


def _uneven(load: list[int], size: list[int], capacity: Sequence[int | None]) -> list[int]:
    """Parts of a chain with a capacity for each: load in proportion where the sizes fit."""
    total = sum(c or 0 for c in capacity)
    whole, done, part = sum(load), 0, 0
    shares = [(c or 0) / total for c in capacity]
    parts: list[int] = []
    filled, reached = 0, shares[0] * whole
    for i in range(len(load)):
        left = len(load) - i
        behind = len(capacity) - 1 - part
        limit = capacity[part]
        full = limit is not None and filled + size[i] > limit and filled > 0
        if part < len(capacity) - 1 and parts and (done >= reached or full or left <= behind):
            part += 1
            filled = 0
            reached = max(reached, done) + shares[part] * whole
        parts.append(part)
        filled += size[i]
        done += load[i]
    return parts


def _pieces(seconds: Sequence[float], most: int) -> list[tuple[int, int]]:
    """Runs of operators of about equal time, at most ``most`` and a few."""
    limit, pieces, start, held = sum(seconds) / most, [], 0, 0.0
    for i, each in enumerate(seconds):
        held += each
        if held >= limit or len(seconds) <= most:
            pieces.append((start, i + 1))
            start, held = i + 1, 0.0
    if start < len(seconds):
        pieces.append((start, len(seconds)))
    return pieces


def plan_pipeline(
    joint: fx.GraphModule,
    budgets: Sequence[Budget],
    schedule: str,
    microbatches: int,
    static_bytes: Callable[[Sequence[Stage]], int],
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
        What a rank holds throughout for its stages.
    weight_bytes : callable
        What it holds throughout for one parameter.
    options : Options
        Costs, solver and time limit; its budget is not read.
    cuts : sequence of int, optional
        Given, they are not chosen.

    Raises
    ------
    InfeasibleBudget
        A rank's budget cannot be met.
    """
    ranks = ranks_of(schedule, len(budgets))
    if cuts is None:
        costs = options.costs(list(forward_operators(joint)))
        each = len(ranks) // len(budgets)
        capacity = [None if (b := budgets[r].bytes) is None else b // each for r in ranks]
        cuts = choose_cuts(joint, costs, len(ranks), weight_bytes, capacity)
    stages = cut(joint, cuts)
    order = actions(schedule, len(budgets), microbatches)
    plans: dict[int, Plan] = {}
    resident, peaks, limits = [], [], []
    for rank, budget in enumerate(budgets):
        mine = [s for s, r in enumerate(ranks) if r == rank]
        static = static_bytes([stages[s] for s in mine])
        fitter = _Fitter(
            {s: stages[s] for s in mine},
            order[rank],
            arrivals(order, ranks, rank),
            static,
            schedule,
            options,
        )
        found, peak, limit = fitter.fit(budget, rank)
        plans |= found
        resident.append(static)
        peaks.append(peak)
        limits.append(limit)
    return PipelinePlan(
        schedule,
        microbatches,
        tuple(cuts),
        ranks,
        tuple(plans[s] for s in range(len(stages))),
        tuple(limits),
        tuple(resident),
        tuple(peaks),
        trace_hash(joint),
    )


class _Fitter:
    """Plans of one rank's stages, tighter and tighter until all fits its budget."""

    def __init__(
        self,
        stages: dict[int, Stage],
        order: Sequence[Action],
        arrived: Mapping[Action, Sequence[Action]],
        static: int,
        schedule: str,
        options: Options,
    ) -> None:
        self.stages, self.order, self.arrived = stages, order, arrived
        self.static, self.options = static, options
        self.splits = SCHEDULES[schedule][2]

    def fit(self, budget: Budget, rank: int) -> tuple[dict[int, Plan], int, int | None]:
        """Plans, predicted peak and limit of the rank."""
        plans, peak = self._plan(None)
        limit = budget.resolve(peak)
        if limit is None or peak <= limit:
            return plans, peak, limit
        low, high, best, least = 0.0, 1.0, None, peak
        for _ in range(_TRIES):
            share = (low + high) / 2
            try:
                plans, peak = self._plan(share)
            except InfeasibleBudget:
                low = share
                continue
            least = min(least, peak)
            if peak <= limit:
                best, low = (plans, peak), share
            elif best is None:
                high = share
            else:
                high = share
        if best is None:
            raise InfeasibleBudget(limit, least, device=f"rank {rank}")
        return best[0], best[1], limit

    def _plan(self, share: float | None) -> tuple[dict[int, Plan], int]:
        plans, prints = {}, {}
        for s, stage in self.stages.items():
            budget = Budget.parse(None if share is None else share)
            options = replace(
                self.options,
                budget=budget,
                reuse=self.options.reuse and not self.splits,
                time_limit=self.options.time_limit / _TRIES / len(self.stages),
            )
            step = plan_step(stage.joint, stage.forward_outputs, 0, options)
            plans[s] = step.plan
            prints[s] = footprint(stage, step.graphs, step.plan.peak_bytes, self.splits)
        return plans, self.static + rank_peak(self.order, prints, self.arrived)


def footprint(stage: Stage, graphs: SplitStep, peak: int, splits: bool) -> Footprint:
    """What a planned stage holds for one microbatch."""
    sources = [f"primals_{i + 1}" for i in range(len(stage.sources))]
    throughout = {n for n, s in zip(sources, stage.sources, strict=True) if s.kind != "received"}

    def size(graph: fx.Graph, values: Sequence[object], but: set[str]) -> int:
        storages = map_storages(graph)
        found = {s for v in values if isinstance(v, fx.Node) for s in storages.of[v]}
        return sum(storages.size[s] for s in found if storages.made_by[s].name not in but)

    made: list[fx.Node] = list(graphs.forward.graph.output_node().args[0])  # type: ignore[arg-type]
    saved = made[stage.forward_outputs :]
    sent = made[len(stage.written) : len(stage.written) + len(stage.made)]
    kept = size(graphs.forward.graph, saved, set(sources))
    delayed = 0
    if splits:
        parts = split_backward(graphs.backward, len(stage.gradients_made))
        delayed = size(graphs.backward.graph, parts.kept, throughout)

    def crossing(names: Sequence[str]) -> int:
        return sum(tensor_bytes(stage.values[n]) for n in names)

    received, back = crossing(stage.received), crossing(stage.gradients_received)
    return Footprint(
        peak=peak,
        kept=kept,
        delayed=delayed,
        received=received,
        sent=size(graphs.forward.graph, [*saved, *sent], set(sources)) - kept,
        gradients_received=back,
        gradients_sent=crossing(stage.gradients_sent),
    )


def rank_peak(
    order: Sequence[Action],
    prints: Mapping[int, Footprint],
    arrived: Mapping[Action, Sequence[Action]],
) -> int:
    """Most bytes that a rank holds for its microbatches, action by action.

    Parameters
    ----------
    order : sequence of Action
        What the rank does.
    prints : mapping
        By number of the stage.
    arrived : mapping
        Computation -> sends whose values are free once it starts (`runtime.pipelining.arrivals`).
        Others are held until the step ends.
    """
    held = peak = 0
    for action in order:
        kind, s, _ = action
        if kind not in ("F", "B", "I", "W", "RECV_F", "RECV_B"):
            continue
        p = prints[s]
        for sent, stage, _ in arrived.get(action, ()):
            held -= prints[stage].sent if sent == "SEND_F" else prints[stage].gradients_sent
        if kind == "RECV_F":
            held += p.received
        elif kind == "RECV_B":
            held += p.gradients_received
        elif kind == "F":
            peak = max(peak, held + p.peak)
            held += p.kept + p.sent
        elif kind in ("B", "I"):
            peak = max(peak, held - p.kept + p.peak + p.gradients_sent)
            held -= p.kept + p.gradients_received
            # A stage of this rank holds what it hands on until its own backward, which is later.
            held -= p.received if s - 1 not in prints else 0
            held -= p.sent if s + 1 in prints else 0
            held += p.gradients_sent + (p.delayed if kind == "I" else 0)
        else:
            peak = max(peak, held - min(p.kept, p.delayed) + p.peak)
            held -= p.delayed
        peak = max(peak, held)
    return peak
