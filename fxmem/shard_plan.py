"""Plan a step over several devices of one process: cuts, then a schedule for each device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import torch
import torch.fx as fx

from .costs import Cost
from .errors import InfeasibleBudget, TraceError
from .logs import tell_plan
from .lower import NANOSECONDS, Lowered, lower
from .passes.shard import stage_of
from .passes.split import SplitStep
from .plan import DeviceShare, Plan
from .planning import Options, PlannedStep, costs_of, graph_hash, make_plan, rewrite, with_replays
from .scheduling import find_schedule
from .shard_lower import LoweredStage, assign, lower_stage, shard_trace, sides
from .simulate import simulate
from .solvers.partition import Device, partition
from .solvers.remat import RematSolution, replay
from .stage_chain import FEWER, StageChain, stage_chain
from .storages import tensor_bytes
from .trace import StepTrace, trace_joint, written_inputs

#: Given the stage of each placeholder, by name: bytes held throughout in each stage.
Residents = Callable[[Mapping[str, int]], Sequence[int]]

_NO_LIMIT = 1 << 62
# Ways to cut that are planned, and with a plan: the fastest is taken.
_MOST_TRIED, _ENOUGH = 8, 2
# What is tried where no estimate fits: the best of all cuts between so many pieces.
_PIECES, _MOST_CUTS = 24, 3000

# The cut that an error was about, by hash of the graph: a budget that it named must be met when
# it is asked for.
_NAMED: dict[str, Cut] = {}
_MOST_REMEMBERED = 32


@dataclass(frozen=True)
class Cut:
    """Where to cut, and where each stage goes.

    Attributes
    ----------
    pieces : int or None
        Of the chain that is cut, as of `stage_chain`.
    cuts : tuple of int
        First item of each stage but the first.
    order : tuple of int
        Number of the device of each stage.
    """

    pieces: int | None
    cuts: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Sharded:
    """A step cut into stages, with a schedule for each.

    Attributes
    ----------
    cut : Cut
    trace : StepTrace
        With copies between stages.
    costs : mapping
    lowered : Lowered
        The whole step.
    stages : tuple of LoweredStage
    solutions : tuple of RematSolution
        Of each stage.
    """

    cut: Cut
    trace: StepTrace
    costs: Mapping[fx.Node, Cost]
    lowered: Lowered
    stages: tuple[LoweredStage, ...]
    solutions: tuple[RematSolution, ...]

    @property
    def time(self) -> int:
        """Nanoseconds of the step; one stage runs at a time."""
        return sum(s.total_time for s in self.solutions)

    @property
    def sequence(self) -> tuple[int, ...]:
        """Forward parts of all stages, the turn, and their backward parts from last to first."""
        turn = self.lowered.problem.turn
        assert turn is not None
        parts = []
        for stage, solution in zip(self.stages, self.solutions, strict=True):
            numbers = [stage.numbers[v] for v in solution.sequence]
            at = numbers.index(turn)
            parts.append((numbers[:at], numbers[at + 1 :]))
        forward = [v for before, _ in parts for v in before]
        backward = [v for _, after in reversed(parts) for v in after]
        return (*forward, turn, *backward)


def plan_shards(
    joint: fx.GraphModule, forward_outputs: int, residents: Residents, options: Options
) -> PlannedStep:
    """Plan one step over ``options.devices``.

    Parameters
    ----------
    joint : fx.GraphModule
        As AOTAutograd hands it to a partitioner; traced on one device.
    forward_outputs : int
    residents : callable
        Bytes held throughout in each stage.
    options : Options

    Raises
    ------
    InfeasibleBudget
        No plan within the budgets was found; names the device that lacks most.
    """
    options.tell("trace", nodes=len(joint.graph.nodes))
    trace = trace_joint(joint, forward_outputs)
    options.tell("costs", operators=len(trace.operators))
    costs = with_replays(options.costs(list(trace.operators)))
    everything = {n.name: 0 for n in trace.joint.graph.find_nodes(op="placeholder")}
    whole = lower(trace, costs, residents(everything)[0], options.reuse)
    baseline = max(replay(whole.problem, range(whole.problem.count)))
    budgets = [budget.resolve(baseline) for _, budget in options.devices]
    chosen = _Chooser(trace, costs, residents, budgets, options).choose()
    graphs = rewrite(chosen.trace, chosen.lowered.read(chosen.sequence), options.reuse)
    plan = _make_plan(chosen, graphs, budgets, baseline, whole, options)
    options.tell("planned", plan=plan)
    tell_plan(plan, graphs)
    tangents = tuple(n.meta["val"] for n in trace.tangents)
    written = written_inputs(joint)
    return PlannedStep(graphs, plan, trace.device(), forward_outputs, written, tangents)


def _make_plan(
    chosen: Sharded,
    graphs: SplitStep,
    budgets: Sequence[int | None],
    baseline: int,
    whole: Lowered,
    options: Options,
) -> Plan:
    """The plan of the whole step, and what each device has of it.

    No bound is known of the time over all cuts but that of the step on one device of endless
    memory.
    """
    trace, costs = chosen.trace, costs_of(graphs, chosen.costs)
    held = [p.lowered.problem.resident_bytes for p in chosen.stages]
    problem = replace(chosen.lowered.problem, resident_bytes=sum(held))
    bound = whole.problem.base_time
    solution = RematSolution(
        sequence=chosen.sequence,
        total_time=chosen.time,
        peak=0,
        lower_bound=bound,
        status="optimal" if chosen.time <= bound else "feasible",
        solver=max(chosen.solutions, key=lambda s: s.total_time).solver,
    )
    outputs = (trace.forward_outputs, trace.written_back)
    limits = [budgets[d] for d in chosen.cut.order]
    known = [b for b in limits if b is not None]
    plan = make_plan(
        trace,
        replace(chosen.lowered, problem=problem),
        solution,
        simulate(graphs, costs, sum(held), *outputs),
        sum(known) if len(known) == len(limits) else None,
        baseline,
        options,
    )
    shares = []
    for stage, solved in enumerate(chosen.solutions):

        def here(node: fx.Node, stage: int = stage) -> bool:
            return stage_of(node) == stage

        shares.append(
            DeviceShare(
                options.devices[chosen.cut.order[stage]][0],
                next((n.name for n in trace.operators if here(n)), ""),
                limits[stage],
                held[stage],
                simulate(graphs, costs, held[stage], *outputs, only=here).peak_bytes,
                solved.total_time / NANOSECONDS,
            )
        )
    return replace(
        plan,
        baseline_seconds=bound / NANOSECONDS,
        stages=tuple(s.first for s in shares[1:]),
        devices=tuple(shares),
    )


class _Chooser:
    """Tries cuts until one fits all devices, and takes the fastest of a few that do."""

    def __init__(
        self,
        trace: StepTrace,
        costs: Mapping[fx.Node, Cost],
        residents: Residents,
        budgets: Sequence[int | None],
        options: Options,
    ) -> None:
        self.trace, self.costs, self.residents = trace, costs, residents
        self.budgets, self.options = budgets, options
        self.chains: dict[int | None, StageChain] = {}
        self.state_bytes = self._state_bytes()
        stages = len(budgets) * (_ENOUGH + 1)
        self.each = replace(options, time_limit=options.time_limit / stages)

    def choose(self) -> Sharded:
        """The fastest plan found.

        Raises
        ------
        InfeasibleBudget
            None was found.
        """
        key = graph_hash(self.trace)
        found: list[Sharded] = []
        failed: list[tuple[int, int, Cut, InfeasibleBudget]] = []
        tried: set[tuple[int, ...]] = set()
        for cut in self._cuts(key):
            stages = self._stages(cut)
            if (mark := (*cut.order, *sorted(stages.values()))) in tried:
                continue
            tried.add(mark)
            sharded, errors = self._plan(cut, stages)
            if sharded is not None:
                found.append(sharded)
                kept = all(
                    s.total_time == p.lowered.problem.base_time
                    for s, p in zip(sharded.solutions, sharded.stages, strict=True)
                )
                if kept or len(found) == _ENOUGH:
                    break
            elif errors:
                short = sum((e.minimum_bytes or _NO_LIMIT) - e.budget_bytes for e in errors)
                worst = max(errors, key=_shortfall)
                failed.append((len(errors), short, cut, worst))
            if len(tried) >= _MOST_TRIED and not found:
                break
        if found:
            return min(found, key=lambda s: s.time)
        if not failed:
            raise TraceError("the step cannot be cut: at each cut values with gaps in memory cross")
        _, _, cut, error = min(failed, key=lambda f: f[:2])
        while len(_NAMED) >= _MOST_REMEMBERED:
            del _NAMED[next(iter(_NAMED))]
        _NAMED[key] = cut
        raise error

    def _stages(self, cut: Cut) -> dict[fx.Node, int]:
        return assign(self.trace, self._chain(cut.pieces), cut.cuts)

    def _chain(self, pieces: int | None) -> StageChain:
        if pieces not in self.chains:
            memory = [_NO_LIMIT if b is None else b for b in self.budgets]
            devices = tuple(Device(m) for m in memory)
            self.chains[pieces] = stage_chain(
                self.trace, self.costs, devices, self.state_bytes, pieces
            )
        return self.chains[pieces]

    def _state_bytes(self) -> float:
        """Bytes of optimizer state for each byte of parameters, about."""
        sources = self.trace.joint.graph.find_nodes(op="placeholder")
        held = sum(tensor_bytes(n.meta["val"]) for n in sources if n not in self.trace.tangents)
        gradients = self.trace.storages_of(self.trace.outputs[self.trace.forward_outputs :])
        size = sum(self.trace.storages.size[s] for s in gradients)
        total = self.residents({n.name: 0 for n in sources})[0]
        return max(0, total - held) / size if size else 0.0

    def _cuts(self, key: str) -> Iterator[Cut]:
        """Ways to cut, by estimate the fastest first; then those that are the least short."""
        if key in _NAMED and len(_NAMED[key].order) == len(self.budgets):
            yield _NAMED[key]
        limit = self.options.time_limit / len(FEWER) / 2
        found = []
        for pieces in FEWER:
            solution = partition(self._chain(pieces).problem, None, "1f1b", 1, limit)
            if solution.stage_plans:
                order = tuple(s.device for s in solution.stage_plans)
                found.append((solution.step_seconds, Cut(pieces, solution.cuts, order)))
        yield from (cut for _, cut in sorted(found, key=lambda f: f[0]))
        yield from self._least_short()

    def _least_short(self) -> list[Cut]:
        problem = self._chain(_PIECES).problem
        count = len(self.budgets)
        order = tuple(range(count))
        scored = []
        for i, cuts in enumerate(combinations(range(1, len(problem.items)), count - 1)):
            if i == _MOST_CUTS:
                break
            short = []
            for (start, stop), device in zip(
                pairwise((0, *cuts, len(problem.items))), problem.devices, strict=True
            ):
                items = problem.items[start:stop]
                lean = [min(i.options, key=lambda o: o.kept) for i in items]
                need = (
                    problem.resident(start, stop)
                    + sum(o.kept for o in lean)
                    + max(o.peak for o in lean)
                )
                short.append(max(0, need - device.memory))
            scored.append((max(short), sum(short), cuts))
        return [Cut(_PIECES, cuts, order) for _, _, cuts in sorted(scored)]

    def _plan(
        self, cut: Cut, stages: Mapping[fx.Node, int]
    ) -> tuple[Sharded | None, list[InfeasibleBudget]]:
        """A plan with this cut, or what each device lacks."""
        count = len(self.budgets)
        devices = [torch.device(self.trace.device())] * count
        try:
            trace = shard_trace(self.trace, stages, devices)
        except TraceError:
            return None, []
        costs = with_replays(self.options.costs(list(trace.operators)))
        lowered = lower(trace, costs, 0, self.options.reuse)
        homes = {n.name: stage_of(n) for n in trace.joint.graph.find_nodes(op="placeholder")}
        held, found = self.residents(homes), sides(trace)
        parts, solutions, errors = [], [], []
        for stage in range(count):
            part = lower_stage(
                lowered, trace, found, stage, held[stage] if stage < len(held) else 0
            )
            name, budget = self.options.devices[cut.order[stage]][0], self.budgets[cut.order[stage]]
            try:
                solutions.append(find_schedule(part.lowered, budget, self.each))
            except InfeasibleBudget as error:
                errors.append(
                    InfeasibleBudget(
                        error.budget_bytes, error.minimum_bytes, error.blockers, device=name
                    )
                )
            parts.append(part)
        if errors:
            return None, errors
        return Sharded(cut, trace, costs, lowered, tuple(parts), tuple(solutions)), []


def _shortfall(error: InfeasibleBudget) -> int:
    return (error.minimum_bytes or _NO_LIMIT) - error.budget_bytes
