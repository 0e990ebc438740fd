"""Seconds of a pipeline's step: its schedule's own list of actions, simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.fx as fx

from ..costs import Cost
from ..passes.split import SplitStep
from ..passes.stages import Stage
from ..planning import graph_costs
from ..runtime.pipelining import Action
from ..runtime.stage import split_backward

#: Bytes a second between two ranks or devices, about: of cuts alike otherwise the one with less
#: traffic.
BANDWIDTH = 4e9
#: Seconds of a stage's "F", "B", "I" and "W".
Seconds = Mapping[str, float]


def stage_seconds(
    stage: Stage, graphs: SplitStep, costs: Mapping[fx.Node, Cost], splits: bool
) -> dict[str, float]:
    """Seconds of one microbatch in a planned stage, recomputation included.

    Parameters
    ----------
    stage : Stage
    graphs : SplitStep
        As planned.
    costs : mapping
        Of the traced nodes that the graphs' stand for.
    splits : bool
        Does backward run in two parts?
    """

    def total(graph: fx.GraphModule) -> float:
        found = graph_costs(graph, costs)
        # A placeholder bears the name of the operator that made its value elsewhere.
        return sum(cost.seconds for n, cost in found.items() if n.op == "call_function")

    whole = {"F": total(graphs.forward), "B": total(graphs.backward)}
    if not splits:
        return whole
    parts = split_backward(graphs.backward, len(stage.gradients_made))
    return {**whole, "I": total(parts.inputs), "W": total(parts.weights)}


def least_seconds(work: float, ranks: int, microbatches: int, in_a_row: bool) -> float:
    """No cuts of a chain make a step shorter, whatever each rank keeps.

    Parameters
    ----------
    work : float
        Seconds of one microbatch in all stages, nothing computed twice.
    ranks, microbatches : int
    in_a_row : bool
        Has each rank one stage, whose backward part runs as one?

    Notes
    -----
    The ranks share all the work. Where they stand in a row, a rank waits for the forward parts of
    all before it and they, after its last, for its gradients: with seconds ``t[i]`` of a
    microbatch a step takes at least ``t[0] + ... + t[i-1] + microbatches * t[i]`` for every
    ``i``. The largest of these is least where all are equal: ``t[i]`` is then the ``i``-th term
    of a geometric series with ratio ``1 - 1 / microbatches``.
    """
    if not in_a_row:
        return work * microbatches / ranks
    return work / (1 - (1 - 1 / microbatches) ** ranks)


def step_seconds(
    orders: Sequence[Sequence[Action]],
    ranks: Sequence[int],
    seconds: Sequence[Seconds],
    ahead: Sequence[float],
    back: Sequence[float],
) -> float:
    """End of the last action; an action starts once its rank is free and its values are there.

    Parameters
    ----------
    orders : sequence of sequence of Action
        What each rank does; communications are looked at only as what computations wait for.
    ranks : sequence of int
        The rank of each stage.
    seconds : sequence of mapping
        Of each stage.
    ahead, back : sequence of float
        Seconds that values, and gradients, take over the cut behind each stage but the last.
    """
    last = len(ranks) - 1
    todo = [[a for a in order if a[0] in "FBIW"] for order in orders]
    done: dict[Action, float] = {}
    clock, place = [0.0] * len(orders), [0] * len(orders)

    def ready(action: Action) -> float | None:
        kind, s, m = action
        if kind == "W":
            return done.get(("I", s, m))
        if kind == "F":
            if s == 0:
                return 0.0
            source, link = [("F", s - 1, m)], ahead[s - 1]
        elif s == last:
            return done.get(("F", s, m))
        else:
            source, link = [("B", s + 1, m), ("I", s + 1, m)], back[s]
        ends = [done[a] for a in source if a in done]
        if not ends:
            return None
        return ends[0] + (0.0 if ranks[source[0][1]] == ranks[s] else link)

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(todo):
            while place[rank] < len(order):
                action = order[place[rank]]
                start = ready(action)
                if start is None:
                    break
                clock[rank] = max(clock[rank], start) + seconds[action[1]][action[0]]
                done[action] = clock[rank]
                place[rank] += 1
                moved = True
    assert all(p == len(order) for p, order in zip(place, todo, strict=True))
    return max(clock)
