"""The pipeline: joint graph -> trace -> costs -> problem -> schedule -> passes -> plan."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx as fx

from .budget import Budget
from .costs import Cost, CostTable, operator_key
from .logs import tell_plan
from .lower import NANOSECONDS, Lowered, lower
from .moving import find_moves, with_moves
from .passes.checkpoint import AGAIN
from .passes.recompute import recompute
from .passes.reuse import reuse
from .passes.split import SplitStep, split
from .passes.transfers import Move
from .passes.verify import verify_layout, verify_split
from .picture import draw_step
from .plan import Decision, Keep, Plan, Recompute
from .runtime.arena import StepArena
from .runtime.random import replay as replay_draw
from .scheduling import find_schedule
from .simulate import Simulation, simulate
from .solvers.remat import RematSolution, replay
from .storages import is_collective, is_transfer, tensor_bytes
from .trace import StepTrace, trace_joint, written_inputs


@dataclass(frozen=True)
class Options:
    """How to plan.

    Attributes
    ----------
    budget : Budget
    costs : CostTable
    solver : str
    time_limit : float
        Seconds for the solver.
    reuse : bool
        May operators overwrite inputs that die at them?
    pool : bool
        Does the step's memory come from one arena, where that can be had?
    devices : tuple of (str, Budget)
        Name and budget of each of several devices; empty for one, whose budget is ``budget``.
    offload : str, optional
        A directory to which values may be moved.
    seed : int
    reserve_bytes : int
        Kept free of the budget, from what an earlier step measured over its plan.
    spare_bytes : int
        Kept free beyond that, so that an arena fits: the schedule is sought near the last one.
    plain_peak_bytes : int
        Largest plain peak of this module's earlier steps. A share is of that, or of this step's
        if it is larger: else a small last batch would have to fit a share of its own.
    kept_bytes : int, optional
        Within the budget, at most so many bytes are kept by the forward for the backward part,
        beside the results of the forward part.
    cache : bool
        Keep schedules on disk, and look there first.
    progress : callable, optional
        Called with (stage name, details).
    """

    budget: Budget
    costs: CostTable
    solver: str = "auto"
    time_limit: float = 30.0
    reuse: bool = True
    pool: bool = True
    devices: tuple[tuple[str, Budget], ...] = ()
    offload: str | None = None
    seed: int = 0
    reserve_bytes: int = 0
    spare_bytes: int = 0
    plain_peak_bytes: int = 0
    kept_bytes: int | None = None
    cache: bool = True
    progress: Callable[[str, Mapping[str, Any]], None] | None = None

    def tell(self, stage: str, **details: Any) -> None:
        """Report progress, if anyone listens."""
        if self.progress is not None:
            self.progress(stage, details)


@dataclass
class PlannedStep:
    """A step ready to compile: its graphs, its plan, and what was measured of it."""

    graphs: SplitStep
    plan: Plan
    device: torch.device
    forward_outputs: int
    written_inputs: tuple[int, ...]
    tangents: tuple[torch.Tensor, ...]
    measured: int | None = None
    run_backward: Callable[[list[Any]], Any] | None = None
    arena: StepArena | None = None
    leaf_gradients: Mapping[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    @property
    def communicates(self) -> bool:
        """Do its graphs wait for other processes?"""
        graphs = (self.graphs.forward.graph, self.graphs.backward.graph)
        return any(is_collective(node) for graph in graphs for node in graph.nodes)


def plan_step(
    joint: fx.GraphModule, forward_outputs: int, resident_bytes: int, options: Options
) -> PlannedStep:
    """Plan one step.

    Parameters
    ----------
    joint : fx.GraphModule
        As AOTAutograd hands it to a partitioner.
    forward_outputs : int
        How many of its outputs belong to the forward part.
    resident_bytes : int
        Held throughout the step.
    options : Options

    Raises
    ------
    InfeasibleBudget
        No plan within the budget was found.
    """
    options.tell("trace", nodes=len(joint.graph.nodes))
    trace = trace_joint(joint, forward_outputs)
    options.tell("costs", operators=len(trace.operators))
    costs = with_replays(options.costs(list(trace.operators)))
    lowered = lower(trace, costs, resident_bytes, options.reuse)
    baseline = max(replay(lowered.problem, range(lowered.problem.count)))
    budget = options.budget.resolve(max(baseline, options.plain_peak_bytes))
    if options.kept_bytes is not None and budget is not None:
        lowered = _with_less_kept(lowered, budget, options.kept_bytes)
    moved = None
    if options.offload is not None and budget is not None:
        moved = find_moves(lowered, trace, budget, options)
    solution = moved.solution if moved else find_schedule(lowered, budget, options)
    order = moved.order if moved else lowered.read(solution.sequence)
    graphs = rewrite(trace, order, options.reuse)
    simulation = simulate(
        graphs, costs_of(graphs, costs), resident_bytes, forward_outputs, trace.written_back
    )
    plan = make_plan(trace, lowered, solution, simulation, budget, baseline, options)
    if moved:
        plan = with_moves(plan, moved, trace, lowered)
    options.tell("planned", plan=plan)
    tell_plan(plan, graphs)
    tangents = tuple(n.meta["val"] for n in trace.tangents)
    return PlannedStep(
        graphs, plan, trace.device(), forward_outputs, written_inputs(joint), tangents
    )


def _with_less_kept(lowered: Lowered, budget: int, most: int) -> Lowered:
    """The problem with so much in use between forward and backward that no more can be kept."""
    problem = lowered.problem
    turn = problem.turn
    assert turn is not None
    results = {*problem.reads[turn], *problem.writes[turn]}
    others = problem.resident_bytes + problem.workspace[turn]
    others += sum(problem.size[s] for s in results)
    workspace = list(problem.workspace)
    workspace[turn] += max(0, budget - others - most)
    return replace(lowered, problem=replace(problem, workspace=tuple(workspace)))


def with_replays(costs: Mapping[fx.Node, Cost]) -> dict[fx.Node, Cost]:
    """A checkpointed draw that is made again costs what its first run does."""
    by_name = {node.name: cost for node, cost in costs.items()}
    return {
        node: by_name[node.meta[AGAIN]] if node.target is replay_draw else cost
        for node, cost in costs.items()
    }


def rewrite(trace: StepTrace, order: Sequence[fx.Node | Move | None], overwrite: bool) -> SplitStep:
    """The passes, in order; each gives a new graph, and each result is verified."""
    laid_out = recompute(
        trace.joint, trace.storages, trace.forward_outputs, order, trace.overwritten
    )
    verify_layout(trace.joint, laid_out)
    if overwrite:
        laid_out = reuse(laid_out)
    verify_layout(trace.joint, laid_out)
    graphs = split(laid_out, trace.forward_outputs)
    verify_split(graphs)
    return graphs


def costs_of(graphs: SplitStep, costs: Mapping[fx.Node, Cost]) -> dict[fx.Node, Cost]:
    """Costs of the rewritten graphs' nodes: those of the traced nodes that they stand for."""
    return {**graph_costs(graphs.forward, costs), **graph_costs(graphs.backward, costs)}


def graph_costs(graph: fx.GraphModule, costs: Mapping[fx.Node, Cost]) -> dict[fx.Node, Cost]:
    """The same of one graph."""
    by_name = {node.name: cost for node, cost in costs.items()}
    free = Cost(0.0, 0)
    found = {}
    for node in graph.graph.nodes:
        if is_transfer(node):  # bears the name of the operator whose value it moves
            found[node] = Cost(node.meta["stall"], 0)
            continue
        cost = by_name.get(str(node.meta.get("of")), free)
        if node.target is replay_draw:  # it sets the generator's present state aside
            state = tensor_bytes(node.args[0].meta["val"])
            cost = Cost(cost.seconds, cost.workspace_bytes + state)
        found[node] = cost
    return found


def make_plan(
    trace: StepTrace,
    lowered: Lowered,
    solution: RematSolution,
    simulation: Simulation,
    budget: int | None,
    baseline: int,
    options: Options,
) -> Plan:
    """Put what was decided into the graph's own names."""
    problem = lowered.problem
    decisions = decide(lowered, solution.sequence)
    sizes = dict(zip(problem.storage_names, problem.size, strict=True))
    return Plan(
        budget_bytes=budget,
        peak_bytes=simulation.peak_bytes,
        resident_bytes=problem.resident_bytes,
        baseline_peak_bytes=baseline,
        seconds=solution.total_time / NANOSECONDS,
        baseline_seconds=problem.base_time / NANOSECONDS,
        lower_bound_seconds=solution.lower_bound / NANOSECONDS,
        status=solution.status,
        solver=solution.solver,
        sequence=tuple(problem.names[v] for v in solution.sequence),
        decisions=decisions,
        value_bytes={name: sizes[name] for name in decisions},
        timeline=simulation.timeline,
        graph_hash=graph_hash(trace),
        seed=options.seed,
        picture=draw_step(lowered, simulation.lifetimes, solution),
    )


def decide(lowered: Lowered, sequence: Sequence[int]) -> dict[str, Decision]:
    """Keep or recompute, for each operator whose result is read on both sides of the turn."""
    problem = lowered.problem
    runs = Counter(sequence)
    assert problem.turn is not None
    turn_at = list(sequence).index(problem.turn)
    before, after = set(sequence[:turn_at]), sequence[turn_at + 1 :]
    read_after = {problem.writer[s] for v in after for s in problem.reads[v]}
    decisions: dict[str, Decision] = {}
    for v in range(problem.count):
        node = lowered.operators[v]
        if node is not None and AGAIN in node.meta:
            decisions[node.meta[AGAIN]] = Recompute(runs[v])
        elif runs[v] > 1:
            decisions[problem.names[v]] = Recompute(runs[v] - 1)
        elif v in read_after and v in before:
            decisions[problem.names[v]] = Keep()
    return decisions


def graph_hash(trace: StepTrace) -> str:
    """Hash of operators, shapes and wiring; node names do not count."""
    number = {node: i for i, node in enumerate(trace.joint.graph.nodes)}
    digest = hashlib.sha256()
    for node, i in number.items():
        wiring = [number[a] for a in node.all_input_nodes]
        digest.update(f"{i}:{node.op}:{operator_key(node)}:{wiring}\n".encode())
    return digest.hexdigest()[:16]
