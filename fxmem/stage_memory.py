"""Bytes that a rank of a pipeline holds, action by action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.fx as fx

from .passes.split import SplitStep
from .passes.stages import Stage
from .runtime.pipelining import Action
from .runtime.stage import split_backward
from .storages import map_storages, tensor_bytes


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
