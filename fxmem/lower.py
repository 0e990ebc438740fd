"""StepTrace and costs to a `RematProblem` of plain numbers, and a schedule back to nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.fx as fx
from torch._ops import OpOverload

from .costs import Cost
from .passes.checkpoint import AGAIN, must_save
from .passes.reuse import candidates
from .solvers.remat import RematProblem
from .storages import is_effect
from .trace import StepTrace

NANOSECONDS = 1e9


@dataclass(frozen=True)
class Lowered:
    """A problem, and the node that each of its operators stands for (None: the turn).

    ``aside_bytes`` is room for what the problem leaves out: generator states of replayed draws
    (5,056 bytes each on the CPU) and copies of inputs that the step overwrites.
    """

    problem: RematProblem
    operators: tuple[fx.Node | None, ...]
    aside_bytes: int = 0

    def read(self, sequence: Sequence[int]) -> list[fx.Node | None]:
        """A schedule in the graph's own nodes."""
        return [self.operators[v] for v in sequence]


def lower(
    trace: StepTrace, costs: Mapping[fx.Node, Cost], resident_bytes: int, reuse: bool = True
) -> Lowered:
    """State the step as a rematerialisation problem.

    Parameters
    ----------
    trace : StepTrace
    costs : mapping from node to Cost
    resident_bytes : int
        Parameters, buffers, inputs, optimizer state: held throughout.
    reuse : bool
        May operators overwrite inputs that die at them?
    """
    storages = trace.storages
    order = _with_turn(trace)
    leaving = trace.storages_of(trace.outputs[: trace.forward_outputs])
    held = trace.storages_of(trace.outputs[trace.written_back :])
    tangents = trace.storages_of(trace.tangents)
    once, random = _runs_once(trace), set(trace.random)
    # The caller holds the forward outputs from the turn on: another copy of one would only add.
    returned = trace.storages_of(trace.outputs[trace.written_back : trace.forward_outputs])
    given = {storages.made_by[s] for s in returned}

    # A loss outside the module: what it keeps and its gradient, about two more of the outputs.
    # An output that is a scalar is the loss, and then nothing happens outside.
    loss_inside = any(n.meta["val"].numel() == 1 for n in trace.tangents)
    outside = 0 if loss_inside else 2 * sum(storages.size[s] for s in tangents)

    # Second runs of what the user checkpointed must come after the turn: they read a storage of
    # no bytes that the turn writes.
    after_turn = (len(storages.size),) if any(n and AGAIN in n.meta for n in order) else ()

    reads: list[tuple[int, ...]] = []
    writes: list[tuple[int, ...]] = []
    victims: list[tuple[int, ...]] = []
    for node in order:
        if node is None:
            reads.append(tuple(sorted(leaving)))
            writes.append((*sorted(tangents), *after_turn))
            victims.append(())
            continue
        reads.append((*storages.read_by(node), *(after_turn if AGAIN in node.meta else ())))
        writes.append(storages.made_at(node))
        found = candidates(node, storages) if reuse else ()
        victims.append(tuple(storages.of[a][0] for a in found))
    problem = RematProblem(
        time=tuple(round(costs[n].seconds * NANOSECONDS) if n else 0 for n in order),
        size=(*storages.size, *(0 for _ in after_turn)),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(costs[n].workspace_bytes if n else outside for n in order),
        reuse=tuple(victims),
        once=frozenset(i for i, n in enumerate(order) if n in once or n in given),
        # The turn is among them: a draw of the forward part must not wait for the backward part.
        ordered=tuple(i for i, n in enumerate(order) if n is None or n in once or n in random),
        turn=order.index(None),
        keep=held | tangents,
        resident_bytes=resident_bytes,
        names=tuple(n.name if n else "turn" for n in order),
        storage_names=(*(n.name for n in storages.made_by), *("turn" for _ in after_turn)),
    )
    states = 5056 * (len(random) + 3) if random else 0
    copies = sum(storages.size[s] for s in trace.storages_of(trace.overwritten))
    return Lowered(problem, tuple(order), states + copies)


def _with_turn(trace: StepTrace) -> list[fx.Node | None]:
    """Operators in traced order, and None before the first that needs a tangent."""
    needs: set[fx.Node] = set(trace.tangents)
    order: list[fx.Node | None] = []
    computing = set(trace.operators)
    for node in trace.joint.graph.nodes:
        if AGAIN in node.meta or any(a in needs for a in node.all_input_nodes):
            needs.add(node)
        if node in computing:
            if node in needs and None not in order:
                order.append(None)
            order.append(node)
    return order if None in order else [*order, None]


def _runs_once(trace: StepTrace) -> frozenset[fx.Node]:
    """Effects, readers of what the graph overwrites, and what the user asked to be saved."""
    effects = {n for n in trace.operators if is_effect(n)}
    plain = {n for n in trace.operators if isinstance(n.target, OpOverload)}
    writers = {n for n in plain if n.target._schema.is_mutable}  # type: ignore[union-attr]
    mutated = {s for n in writers for s in trace.storages.of[n]}
    readers = {n for n in trace.operators if mutated & set(trace.storages.read_by(n))}
    wanted = trace.storages_of(tuple(n for n in trace.joint.graph.nodes if must_save(n)))
    kept = {trace.storages.made_by[s] for s in wanted}
    return frozenset(effects | writers | readers | kept)
