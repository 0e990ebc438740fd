"""Plan a step over several devices of one process: cuts, then a schedule for each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch.fx as fx

from ..logs import tell_plan
from ..lower import NANOSECONDS, Lowered, lower
from ..passes.shard import stage_of
from ..passes.split import SplitStep
from ..plan import DeviceShare, Plan
from ..planning import Options, PlannedStep, costs_of, make_plan, rewrite, with_replays
from ..simulate import simulate
from ..solvers.remat import RematSolution, replay
from ..trace import trace_joint, written_inputs
from .shard_cuts import Chooser, Residents, Sharded


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
    largest = max(baseline, options.plain_peak_bytes)
    budgets = [budget.resolve(largest) for _, budget in options.devices]
    chosen = Chooser(trace, costs, residents, budgets, options).choose()
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
