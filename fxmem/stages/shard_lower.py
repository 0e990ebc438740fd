"""A step over several devices as one rematerialisation problem for each of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.fx as fx

from ..lower import Lowered
from ..passes.shard import is_move, shard, stage_of
from ..solvers.remat import RematProblem
from ..storages import is_effect, is_random, map_storages
from ..trace import StepTrace
from .chain import StageChain


def assign(trace: StepTrace, chain: StageChain, cuts: Sequence[int]) -> dict[fx.Node, int]:
    """The stage of each operator: forward runs stage by stage, and backward in reverse.

    What the backward part computes of forward values alone runs where it is first read.

    Parameters
    ----------
    trace : StepTrace
        Of the step on one device.
    chain : StageChain
        Of that trace.
    cuts : sequence of int
        First item of each stage but the first.
    """
    stage: dict[fx.Node, int] = {}
    late: set[fx.Node] = set()
    for i, (forward, backward) in enumerate(zip(chain.forward, chain.backward, strict=True)):
        stage |= dict.fromkeys((*forward, *backward), bisect_right(cuts, i))
        late.update(backward)
    gradients = _after_tangents(trace)
    latest = 0
    for node in trace.operators:  # draws and effects keep their order
        if node in late and is_early(node) and node not in gradients:
            late.remove(node)
            stage[node] = latest
        elif node not in late:
            latest = stage[node]
    wanted: dict[fx.Node, int] = {}  # at least this stage, by those that read it
    for node in reversed(trace.joint.graph.nodes):
        least = max((wanted.get(user, 0) for user in node.users), default=0)
        if node in late:
            if node not in gradients:
                stage[node] = max(stage[node], least)
            wanted[node] = stage[node]
        elif node not in stage:  # a view, or one of several results
            wanted[node] = least
    return stage


def is_early(node: fx.Node) -> bool:
    """Must the node run in the forward part, whoever reads it?"""
    return is_random(node) or is_effect(node)


def _after_tangents(trace: StepTrace) -> set[fx.Node]:
    """Tangents and all that is computed from them."""
    found: set[fx.Node] = set(trace.tangents)
    for node in trace.joint.graph.nodes:
        if any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def shard_trace(
    trace: StepTrace, stages: Mapping[fx.Node, int], devices: Sequence[torch.device]
) -> StepTrace:
    """The trace with a stage for each node, and copies between stages.

    Parameters
    ----------
    trace : StepTrace
    stages, devices
        As of `passes.shard.shard`.
    """
    joint = shard(trace.joint, stages, devices)
    names = {n.name for n in trace.overwritten}
    overwritten = tuple(n for n in joint.graph.find_nodes(op="placeholder") if n.name in names)
    storages = map_storages(joint.graph)
    return StepTrace(joint, storages, trace.forward_outputs, trace.written_back, overwritten)


@dataclass(frozen=True)
class Sides:
    """Which operators of a sharded step run before the turn, and what crosses to other stages.

    Attributes
    ----------
    forward, backward : frozenset of fx.Node
    once : frozenset of fx.Node
        Copies of computed values, which the stage that they come from may then free.
    sent, kept : frozenset of int
        Storages that other stages copy before the turn, and after it.
    """

    forward: frozenset[fx.Node]
    backward: frozenset[fx.Node]
    once: frozenset[fx.Node]
    sent: frozenset[int]
    kept: frozenset[int]


def sides(trace: StepTrace) -> Sides:
    """Tell forward from backward.

    Forward is what forward outputs and random draws depend on, and the copies of its values
    that later stages read in their backward part: the stage that such a value comes from may
    free it sooner.
    """
    forward: set[fx.Node] = set()
    gradients = _after_tangents(trace)
    waiting = [n for n in trace.outputs[: trace.forward_outputs] if n is not None]
    waiting += [n for n in trace.operators if is_early(n) and n not in gradients]
    while waiting:
        node = waiting.pop()
        if node not in forward:
            forward.add(node)
            waiting.extend(node.all_input_nodes)
    made_by = trace.storages.made_by
    once: set[fx.Node] = set()
    sent: set[int] = set()
    kept: set[int] = set()
    for node in filter(is_move, trace.operators):
        (source,) = node.all_input_nodes
        read = {s for s in trace.storages.read_by(node) if made_by[s].op == "call_function"}
        if read:
            once.add(node)
        ahead = stage_of(source) < stage_of(node)
        if ahead and read and all(made_by[s] in forward for s in read):
            forward.add(node)
        (sent if node in forward else kept).update(read)
    own = set(trace.operators)
    return Sides(
        frozenset(own & forward),
        frozenset(own - forward),
        frozenset(once),
        frozenset(sent),
        frozenset(kept),
    )


@dataclass(frozen=True)
class LoweredStage:
    """The problem of one stage, and the number of each of its operators in the whole step's."""

    lowered: Lowered
    numbers: tuple[int, ...]


def lower_stage(
    whole: Lowered, trace: StepTrace, found: Sides, stage: int, resident_bytes: int
) -> LoweredStage:
    """State what one stage does as a problem of its own.

    Bytes on its device are those of storages that its nodes make. The turn stands for all the
    time from the end of the stage's forward part to the start of its backward part, in which
    nothing of its own runs: what other stages copy in the forward part must be there at it, and
    what they copy of gradients at the end. Operators of the backward part wait for the turn.

    Parameters
    ----------
    whole : Lowered
        The sharded step.
    trace : StepTrace
        The same.
    found : Sides
    stage : int
    resident_bytes : int
        Held throughout on its device.
    """
    problem = whole.problem
    assert problem.turn is not None
    number = {n: v for v, n in enumerate(whole.operators) if n is not None}
    here = [n for n in trace.operators if stage_of(n) == stage]
    order = [number[n] for n in here if n in found.forward]
    order.append(problem.turn)
    order += [number[n] for n in here if n in found.backward]
    own = {s for s, n in enumerate(trace.storages.made_by) if stage_of(n) == stage}
    turned = len(problem.size)  # a storage of no bytes that the turn writes

    def only(storages: Sequence[int]) -> tuple[int, ...]:
        return tuple(s for s in storages if s in own)

    reads, writes = [], []
    for v in order:
        node = whole.operators[v]
        if node is None:
            reads.append(tuple(sorted({*only(problem.reads[v]), *(found.sent & own)})))
            writes.append((*only(problem.writes[v]), turned))
        else:
            waits = (turned,) if node in found.backward else ()
            reads.append((*only(problem.reads[v]), *waits))
            writes.append(problem.writes[v])
    at = {v: i for i, v in enumerate(order)}
    copies = {at[number[n]] for n in here if n in found.once}
    starts_backward = bool(trace.storages_of(trace.tangents) & own)
    workspace = [problem.workspace[v] for v in order]
    if not starts_backward:  # the loss outside is not on this device
        workspace[at[problem.turn]] = 0
    local = RematProblem(
        time=tuple(problem.time[v] for v in order),
        size=(*problem.size, 0),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(workspace),
        reuse=tuple(only(problem.reuse[v]) for v in order),
        once=frozenset(at[v] for v in problem.once if v in at) | copies,
        ordered=tuple(sorted({at[v] for v in problem.ordered if v in at} | copies)),
        turn=at[problem.turn],
        keep=frozenset(only(sorted(problem.keep | found.kept))),
        resident_bytes=resident_bytes,
        names=tuple(problem.names[v] for v in order),
        storage_names=(*problem.storage_names, "turn"),
    )
    nodes = tuple(whole.operators[v] for v in order)
    return LoweredStage(Lowered(local, nodes, whole.aside_bytes), tuple(order))
