"""StepTrace and costs to a `PartitionProblem`: a chain that can be cut between any operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch.fx as fx

from ..costs import Cost
from ..solvers.partition import (
    Device,
    Item,
    Option,
    PartitionProblem,
    PartitionSolution,
    Tie,
    partition,
)
from ..storages import StorageMap, is_effect, is_random, is_view
from ..trace import StepTrace

#: Cuts are sought between so many items of about equal time; None: between all operators.
PIECES = 96
#: Fewer items are longer, and one that runs again keeps less: tried where memory is short.
FEWER = (PIECES, 48, 24, 12)


@dataclass(frozen=True)
class StageChain:
    """A problem, and what its items stand for.

    Attributes
    ----------
    problem : PartitionProblem
    forward : tuple of tuple of fx.Node
        Forward operators of each item, in traced order.
    backward : tuple of tuple of fx.Node
        Operators of its backward part.
    """

    problem: PartitionProblem
    forward: tuple[tuple[fx.Node, ...], ...]
    backward: tuple[tuple[fx.Node, ...], ...]


def stage_chain(
    trace: StepTrace,
    costs: Mapping[fx.Node, Cost],
    devices: Sequence[Device],
    state_bytes: float = 0.0,
    pieces: int | None = PIECES,
) -> StageChain:
    """State the cutting of a step as a partition problem.

    An item keeps what its backward part reads, or (the lean option) only what its forward part
    reads of other items, and then runs once more. A gradient is made where the forward operator
    is whose gradient it is (autograd numbers both alike), and never later than a gradient that
    it reads. Every estimate of bytes errs upwards: a value that two items keep counts twice.

    Parameters
    ----------
    trace : StepTrace
        Of one microbatch.
    costs : mapping from node to Cost
    devices : sequence of Device
    state_bytes : float
        Bytes of optimizer state for each byte of gradient.
    pieces : int, optional
        Most items, about.
    """
    return _Chain(trace, costs, pieces).state(tuple(devices), state_bytes)


def cut_step(
    trace: StepTrace,
    costs: Mapping[fx.Node, Cost],
    devices: Sequence[Device],
    schedule: str = "1f1b",
    microbatches: int = 8,
    time_limit: float = 60.0,
    state_bytes: float = 0.0,
) -> tuple[StageChain, PartitionSolution]:
    """Cut a step: the best partition over chains of many short and of few long items.

    Parameters
    ----------
    trace, costs, devices, state_bytes
        As of `stage_chain`.
    schedule, microbatches
        As of `solvers.partition.partition`.
    time_limit : float
        Seconds for all chains.

    Returns
    -------
    StageChain, PartitionSolution
        The solution's status and bound are about this chain.
    """
    found: list[tuple[StageChain, PartitionSolution]] = []
    for pieces in FEWER:
        chain = stage_chain(trace, costs, devices, state_bytes, pieces)
        share = time_limit / len(FEWER)
        solution = partition(chain.problem, None, schedule, microbatches, share)
        found.append((chain, solution))
        if solution.stage_plans and not any(any(s.options) for s in solution.stage_plans):
            break  # nothing runs again: longer items could not be better
    return min(found, key=lambda pair: pair[1].step_seconds)


class _Chain:
    """Where each operator runs, and who makes and reads each storage."""

    def __init__(self, trace: StepTrace, costs: Mapping[fx.Node, Cost], pieces: int | None) -> None:
        self.trace, self.costs, self.storages = trace, costs, trace.storages
        late = self._late()
        forward = [n for n in trace.operators if n not in late]
        self.forward = _groups(forward, costs, pieces, _widths(forward, self.storages))
        self.count = len(self.forward)
        self.place = {n: i for i, group in enumerate(self.forward) for n in group}
        self._place_late(late)
        back: list[list[fx.Node]] = [[] for _ in self.forward]
        for node in trace.operators:
            if node in late:
                back[self.place[node]].append(node)
        self.backward = tuple(map(tuple, back))
        self.late = late
        self.outputs = trace.storages_of(trace.outputs)
        self.readers: dict[int, list[fx.Node]] = defaultdict(list)
        for node in trace.operators:
            for storage in self.storages.read_by(node):
                self.readers[storage].append(node)
        made = self.storages.made_by
        self.made = {s: self.place[n] for s, n in enumerate(made) if n in self.place}
        self.kept = {
            s for s in self.made if made[s] not in late and any(n in late for n in self.readers[s])
        }

    def _late(self) -> set[fx.Node]:
        """Tangents and operators of the backward part: no forward output depends on them."""
        reached: set[fx.Node] = set()
        outputs = self.trace.outputs[: self.trace.forward_outputs]
        waiting = [n for n in outputs if n is not None]
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting.extend(node.all_input_nodes)
        return {*self.trace.tangents, *(n for n in self.trace.operators if n not in reached)}

    def _place_late(self, late: set[fx.Node]) -> None:
        number: dict[object, int] = {}
        for node, item in self.place.items():
            key = node.meta.get("seq_nr")
            number[key] = max(number.get(key, 0), item)
        number.pop(None, None)
        gradient = dict.fromkeys(self.trace.tangents, self.count - 1)  # what needs a tangent
        local = dict(self.place)  # what does not: derivatives of forward values, and views
        for node in self.trace.joint.graph.nodes:
            if node in local or node in gradient or node.op == "output":
                continue
            wanted = None if is_view(node) else number.get(node.meta.get("seq_nr"))
            bounds = [gradient[a] for a in node.all_input_nodes if a in gradient]
            if bounds:
                gradient[node] = min([*bounds, *([] if wanted is None else [wanted])])
            else:
                local[node] = max([wanted or 0, *(local[a] for a in node.all_input_nodes)])
        places = {**local, **gradient}
        self.place |= {n: places[n] for n in self.trace.operators if n in late}

    def state(self, devices: tuple[Device, ...], state_bytes: float) -> StageChain:
        residents, ties = self._residents(state_bytes)
        items = tuple(self._item(i, residents[i]) for i in range(self.count))
        crossing = tuple(map(self._crossing, range(self.count - 1)))
        problem = PartitionProblem(items, crossing, devices, ties)
        return StageChain(problem, self.forward, self.backward)

    def _residents(self, state_bytes: float) -> tuple[list[int], tuple[Tie, ...]]:
        """Bytes that only one item reads throughout, and what several read."""
        own, ties = [0] * self.count, []
        sources = [n for n in self.trace.joint.graph.nodes if n.op == "placeholder"]
        gradients = self.trace.outputs[self.trace.forward_outputs :]
        with_gradient = {
            self.storages.of[n][0]
            for n, g in zip(sources, gradients, strict=False)
            if g is not None and self.storages.of[n]
        }
        for storage, node in enumerate(self.storages.made_by):
            if node.op not in ("placeholder", "get_attr") or node in self.late:
                continue
            size, exchanged = self.storages.size[storage], 0
            if storage in with_gradient:
                exchanged = size
                size += round(exchanged * (1 + state_bytes))
            items = sorted({self.place[n] for n in self.readers[storage]}) or [0]
            if len(items) == 1:
                own[items[0]] += size
            else:
                ties.append(Tie(tuple(items), size, exchanged))
        return own, tuple(ties)

    def _item(self, i: int, resident: int) -> Item:
        size, made = self.storages.size, self.made
        kept = sum(size[s] for s in self.kept if made[s] == i)
        read = {s for n in self.forward[i] for s in self.storages.read_by(n)}
        lean = sum(size[s] for s in read if s in made and made[s] < i)
        needed = sum(
            size[s]
            for s, place in made.items()
            if place == i and s in self.kept and any(self.place[n] != i for n in self.readers[s])
        )
        seconds = [sum(self.costs[n].seconds for n in g[i]) for g in (self.forward, self.backward)]
        peak = max(self._peak(i, self.forward[i]), self._peak(i, self.backward[i]))
        options = [Option(0.0, kept, peak)]
        once = any(is_random(n) or is_effect(n) for n in self.forward[i])
        if lean + needed < kept and not once:
            options.append(Option(seconds[0], lean + needed, peak + kept))
        weight = sum(self.costs[n].seconds for n in self._weights(i))
        return Item(seconds[0], seconds[1], resident, tuple(options), min(weight, seconds[1]))

    def _weights(self, i: int) -> list[fx.Node]:
        """Backward operators of which nothing but results of the step is made."""
        gradients = self.trace.storages_of(self.trace.outputs[self.trace.forward_outputs :])
        return [
            n
            for n in self.backward[i]
            if (own := self.storages.made_at(n))
            and all(s in gradients and not self.readers[s] for s in own)
        ]

    def _peak(self, i: int, operators: Sequence[fx.Node]) -> int:
        """Most bytes beside what is kept and held throughout, while some operators run in order.

        What comes from other items, or goes to them, is there all the while.
        """
        if not operators:
            return 0
        late = operators[0] in self.late
        size = self.storages.size
        at = {n: k for k, n in enumerate(operators)}
        change = [0] * (len(operators) + 1)
        for storage, place in self.made.items():
            maker = self.storages.made_by[storage]
            results = storage in self.outputs and maker in self.late
            if (maker in self.late) != late or storage in self.kept or results:
                continue
            places = [self.place[n] for n in self.readers[storage] if (n in self.late) == late]
            beyond = storage in self.outputs or any(p != i for p in places)
            if place == i:
                first = at[maker]
                ends = [at[n] for n in self.readers[storage] if n in at]
                last = len(operators) - 1 if beyond else max(ends, default=first)
            elif any((p <= i < place) if late else (place < i <= p) for p in places):
                first, last = 0, len(operators) - 1
            else:
                continue
            change[first] += size[storage]
            change[last + 1] -= size[storage]
        live = most = 0
        for k, node in enumerate(operators):
            live += change[k]
            most = max(most, live + self.costs[node].workspace_bytes)
        return most

    def _crossing(self, cut: int) -> int:
        """Bytes over the cut after item ``cut``: the more of the two directions."""
        ahead = back = 0
        for storage, place in self.made.items():
            places = [self.place[n] for n in self.readers[storage]]
            if place <= cut and any(p > cut for p in places):
                ahead += self.storages.size[storage]
            if place > cut and any(p <= cut for p in places):
                back += self.storages.size[storage]
        return max(ahead, back)


def _groups(
    operators: Sequence[fx.Node],
    costs: Mapping[fx.Node, Cost],
    pieces: int | None,
    widths: Sequence[int],
) -> tuple[tuple[fx.Node, ...], ...]:
    """Runs of about equal time, between half and one and a half of it, ending at a waist."""
    if pieces is None or len(operators) <= pieces:
        return tuple((n,) for n in operators)
    limit = sum(costs[n].seconds for n in operators) / pieces
    groups, start, held = [], 0, 0.0
    best: int | None = None
    for i, node in enumerate(operators):
        held += costs[node].seconds
        if held >= limit / 2 and (best is None or widths[i] <= widths[best]):
            best = i
        if held >= 1.5 * limit:
            assert best is not None
            groups.append(tuple(operators[start : best + 1]))
            start = best + 1
            held = sum(costs[n].seconds for n in operators[start : i + 1])
            best = i if held >= limit / 2 else None
    return tuple([*groups, tuple(operators[start:])] if start < len(operators) else groups)


def _widths(operators: Sequence[fx.Node], storages: StorageMap) -> list[int]:
    """Bytes made at or before each operator and read by operators after it."""
    at = {n: i for i, n in enumerate(operators)}
    last: dict[int, int] = {}
    for i, node in enumerate(operators):
        last |= dict.fromkeys(storages.read_by(node), i)
    change = [0] * (len(operators) + 1)
    for storage, end in last.items():
        if storages.made_by[storage] in at:
            change[at[storages.made_by[storage]]] += storages.size[storage]
            change[end] -= storages.size[storage]
    return list(accumulate(change))
