"""Find a schedule that may also move values to a slower tier and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import TYPE_CHECKING

import torch.fx as fx
from torch._ops import OpOverload

from .costs.links import measure_tier
from .errors import InfeasibleBudget
from .files.move_cache import MoveCache
from .lower import NANOSECONDS, Lowered
from .passes.transfers import Kind, Move, is_movable
from .plan import Offload, Plan, Transfer
from .scheduling import CLOSE, blockers
from .solvers.remat import RematProblem, RematSolution
from .solvers.transfer import Action, Replay, TransferProblem, TransferSolution, check, solve
from .trace import StepTrace

if TYPE_CHECKING:
    from .planning import Options

# Less is not worth a transfer: its latency is that of many small operators.
_LEAST_BYTES = 16 * 1024

# The schedule of least peak that any search has found, by problem: a budget that an error named
# must be met when it is asked for, whatever the next search finds.
_LEAST: dict[RematProblem, tuple[int, tuple[Action, ...]]] = {}
_MOST_REMEMBERED = 32

# Between two operators, what leaves goes first and what comes back follows.
_TURNS: tuple[Kind, ...] = ("out", "out_done", "in", "in_done")
_KINDS: dict[str, tuple[Kind, Kind]] = {"out": ("out", "out_done"), "in": ("in", "in_done")}


@dataclass(frozen=True)
class Moved:
    """A schedule with transfers.

    Attributes
    ----------
    solution : RematSolution
        Its operators alone; ``total_time`` is the makespan, waits included.
    order : tuple of fx.Node, Move or None
        Operators and moves, as the recompute pass reads them.
    transfers : tuple of Transfer
    """

    solution: RematSolution
    order: tuple[fx.Node | Move | None, ...]
    transfers: tuple[Transfer, ...]


def find_moves(lowered: Lowered, trace: StepTrace, budget: int, options: Options) -> Moved:
    """The solver's schedule within ``budget`` bytes.

    Raises
    ------
    InfeasibleBudget
        None was found; says the least bytes found and which tensors need them.
    TransferError
        The tier cannot be written to.
    """
    assert options.offload is not None
    values = movable(lowered, trace)
    tier = measure_tier(options.offload, options.cache)
    problem = TransferProblem(lowered.problem, (tier,), frozenset(values))
    held_back = options.reserve_bytes + options.spare_bytes + lowered.aside_bytes
    history: list[tuple[float, int, int]] = []
    found = _search(problem, max(0, budget - held_back), options, history)
    _remember(lowered.problem, found)
    solution = _operators_of(found, history)
    if found.status not in ("optimal", "feasible"):
        known = _LEAST.get(lowered.problem)
        least = known[0] + held_back if known else None
        raise InfeasibleBudget(budget, least, blockers(lowered, solution))
    replay = check(problem, found.actions)
    return Moved(
        solution,
        tuple(_order(lowered, values, tier.name, found.actions, replay)),
        tuple(_transfers(values, tier.name, found.actions, replay)),
    )


def _search(
    problem: TransferProblem, limit: int, options: Options, history: list[tuple[float, int, int]]
) -> TransferSolution:
    """What the solver finds, or found in an earlier run."""
    cache = MoveCache(problem, limit, options.seed, options.time_limit, CLOSE)
    if options.cache and (known := cache.find()) is not None:
        return known

    def tell(seconds: float, time: int, peak: int, bound: int) -> None:
        history.append((seconds, time, bound))
        options.tell("solve", seconds=seconds, time=time, peak=peak, bound=bound)

    least = _LEAST.get(problem.remat)
    found = solve(
        problem,
        limit,
        time_limit=options.time_limit,
        seed=options.seed,
        start=least[1] if least else None,
        gap=CLOSE,
        progress=tell,
    )
    if options.cache and not found.interrupted and found.status in ("optimal", "feasible"):
        cache.keep(found)
    return found


def _remember(problem: RematProblem, found: TransferSolution) -> None:
    """Keep the schedule if its peak is the least so far."""
    if found.actions and (problem not in _LEAST or found.peak < _LEAST[problem][0]):
        while len(_LEAST) >= _MOST_REMEMBERED:
            del _LEAST[next(iter(_LEAST))]
        _LEAST[problem] = (found.peak, found.actions)


def order_of(trace: StepTrace, plan: Plan) -> list[fx.Node | Move | None]:
    """What a plan runs and moves, as the recompute pass reads it.

    Parameters
    ----------
    trace : StepTrace
        The plan's own, or an equal one.
    plan : Plan
    """
    operators = {n.name: n for n in trace.operators}
    values = {n.name: n for n in trace.joint.graph.nodes} if plan.transfers else {}
    moves: dict[tuple[int, Kind], list[Move]] = defaultdict(list)
    for t in plan.transfers:
        asked, done = _KINDS[t.direction]
        moves[t.asked, asked].append(Move(asked, values[t.value], t.tier, t.toll))
        moves[t.done, done].append(Move(done, values[t.value], t.tier, t.stall))
    order: list[fx.Node | Move | None] = []
    for position in range(len(plan.sequence) + 1):
        for kind in _TURNS:
            order += moves[position, kind]
        if position < len(plan.sequence):
            order.append(operators.get(plan.sequence[position]))
    return order


def with_moves(plan: Plan, moved: Moved, trace: StepTrace, lowered: Lowered) -> Plan:
    """The plan with its transfers, and the decision for each value that is moved.

    Of an operator with several values some may be moved and some not: its own name then stands
    for those that stay, and is left out where none does.
    """
    outward = {t.value: Offload("cpu", t.tier) for t in moved.transfers if t.direction == "out"}
    sizes = {t.value: t.bytes for t in moved.transfers}
    owner: dict[str, str] = {}
    away: set[int] = set()
    for move in moved.order:
        if isinstance(move, Move):
            away |= set(trace.storages.of[move.value])
            if move.value.target is getitem:
                (whole,) = move.value.all_input_nodes
                owner[move.value.name] = whole.name
    stays = _held_over_turn(lowered, moved.solution.sequence, away)
    decisions = {n: d for n, d in plan.decisions.items() if n not in owner.values() or n in stays}
    sizes.update({name: stays[name] for name in owner.values() if name in stays})
    assert plan.picture is not None
    return replace(
        plan,
        decisions={**decisions, **outward},
        value_bytes={n: {**plan.value_bytes, **sizes}[n] for n in (*decisions, *outward)},
        transfers=moved.transfers,
        picture=replace(plan.picture, owners=owner),
    )


def _held_over_turn(
    lowered: Lowered, sequence: Sequence[int], away: Container[int]
) -> dict[str, int]:
    """Operator -> bytes of its values that backward reads, those moved ``away`` left out."""
    problem = lowered.problem
    assert problem.turn is not None
    after = sequence[list(sequence).index(problem.turn) + 1 :]
    held: dict[str, int] = {}
    for s in {s for v in after for s in problem.reads[v]}:
        if s not in away and problem.writer[s] >= 0:
            name = problem.names[problem.writer[s]]
            held[name] = held.get(name, 0) + problem.size[s]
    return held


def movable(lowered: Lowered, trace: StepTrace) -> dict[int, fx.Node]:
    """Storages that may be moved, and the node of each whose value covers it.

    They are made by operators of the forward part, leave the step nowhere, and nobody writes
    into them.
    """
    problem, storages = lowered.problem, trace.storages
    assert problem.turn is not None
    written = {
        s
        for node in trace.operators
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        for argument in node.all_input_nodes
        for s in storages.of[argument]
    }
    found: dict[int, fx.Node] = {}
    for node in trace.joint.graph.nodes:
        if node.op != "call_function" or len(storages.of[node]) != 1:
            continue
        (storage,) = storages.of[node]
        if storage < 0 or storage in found or storage in written or storage in problem.keep:
            continue
        if not 0 <= problem.writer[storage] < problem.turn:
            continue
        if storages.size[storage] >= _LEAST_BYTES and is_movable(node.meta.get("val")):
            found[storage] = node
    return found


def _operators_of(
    found: TransferSolution, history: Sequence[tuple[float, int, int]]
) -> RematSolution:
    return RematSolution(
        sequence=tuple(a.index for a in found.actions if a.kind == "run"),
        total_time=found.makespan,
        peak=found.peak,
        lower_bound=found.lower_bound,
        status=found.status,
        solver=found.solver,
        history=(*history, (found.seconds, found.makespan, found.lower_bound)),
        interrupted=found.interrupted,
    )


def _order(
    lowered: Lowered,
    values: dict[int, fx.Node],
    tier: str,
    actions: Sequence[Action],
    replay: Replay,
) -> list[fx.Node | Move | None]:
    order: list[fx.Node | Move | None] = []
    for i, action in enumerate(actions):
        if action.kind == "run":
            order.append(lowered.operators[action.index])
        else:
            stall = (replay.ends[i] - replay.starts[i]) / NANOSECONDS
            order.append(Move(action.kind, values[action.index], tier, stall))
    return order


def _transfers(
    values: dict[int, fx.Node], tier: str, actions: Sequence[Action], replay: Replay
) -> list[Transfer]:
    before = [0]
    for action in actions:
        before.append(before[-1] + (action.kind == "run"))
    return [
        Transfer(
            values[t.storage].name,
            tier,
            t.direction,
            t.size,
            before[t.asked],
            before[t.done],
            t.start / NANOSECONDS,
            t.end / NANOSECONDS,
            (replay.ends[t.done] - replay.starts[t.done]) / NANOSECONDS,
            (replay.ends[t.asked] - replay.starts[t.asked]) / NANOSECONDS,
        )
        for t in replay.transfers
    ]
