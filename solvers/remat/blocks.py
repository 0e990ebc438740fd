"""``blocks``: repeated stages are solved once, in several ways, and combined exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .arrays import Arrays, flatten
from .evaluate import evaluate
from .lean import ladder
from .problem import RematProblem
from .relieve import relieve
from .rotor import Way, best_plan, keep_all
from .stages import Chain, Stage, chain_of_stages, local_peak

MOST_STAGES = 100
MOST_WAYS = 12
# Shares of its peak under which each way is also tried.
TIGHTER = (0.8, 0.6, 0.45)


def blocks(problem: RematProblem, a: Arrays, budget: int | None, deadline: float) -> np.ndarray:
    """Hierarchical planning, after Rockmate (Zhao et al., ICML 2023).

    The step is a chain of stages (`stages`). Those with the same operators, costs and reads
    are one kind; of each kind one is solved alone for a set of ways to save it, by minimum cuts
    at its turn over many prices of a byte, and then under smaller peaks. What combines them is
    the dynamic program of `chainplan`, which is exact on that set up to its rounding of bytes.
    Rockmate solves its blocks by an integer program for a grid of budgets; cuts give the
    fronts' convex hull in milliseconds. A graph that is no chain is one stage of its own.
    """
    chain = chain_of_stages(problem, a, MOST_STAGES)
    if budget is None or not chain.stages or not chain.stages[-1].forward:
        return np.arange(problem.count)
    solved: dict[tuple, tuple[Stage, list[Way]]] = {}
    ways = []
    for stage in chain.stages:
        kind = kind_of(problem, chain, stage)
        if kind not in solved:
            solved[kind] = stage, ways_of(problem, chain, stage)
        first, found = solved[kind]
        ways.append([_carried(problem, first, stage, way) for way in found])
    return best_plan(problem, a, budget, chain, ways, deadline)


def kind_of(problem: RematProblem, chain: Chain, stage: Stage) -> tuple:
    """Equal for two stages that are the same but for the numbers of operators and storages."""
    names: dict[int, int] = {}

    def named(storages: Sequence[int]) -> tuple[tuple[int, int, bool], ...]:
        return tuple(
            (names.setdefault(s, len(names)), problem.size[s], s in problem.keep) for s in storages
        )

    rows = [
        (
            *(problem.time[v], problem.workspace[v], v in chain.held),
            *(named(problem.reads[v]), named(problem.writes[v]), named(problem.reuse[v])),
        )
        for v in (*stage.forward, *stage.backward)
    ]
    return len(stage.forward), tuple(rows), named(stage.source), named(stage.result)


def _carried(problem: RematProblem, solved: Stage, stage: Stage, way: Way) -> Way:
    """``way`` of the stage that was solved, in another one of its kind."""
    twin = dict(zip(solved.forward + solved.backward, stage.forward + stage.backward, strict=True))
    storage = {
        s: t
        for v, w in twin.items()
        for s, t in zip(problem.writes[v], problem.writes[w], strict=True)
    }
    return Way(frozenset(storage[s] for s in way.saved), tuple(twin[v] for v in way.backward))


def ways_of(problem: RematProblem, chain: Chain, stage: Stage) -> list[Way]:
    """From saving all that is read to making all again, none worse than another in all."""
    alone = Alone(problem, chain, stage)
    a = flatten(alone.step)
    found = [keep_all(problem, chain, stage)]
    for sequence in ladder(alone.step, a):
        peak = evaluate(a, sequence, 0)[1]
        for x in (sequence, *(relieve(a, sequence, int(x * peak), 1.0) for x in TIGHTER)):
            way = alone.way(x.tolist())
            found += [] if way is None else [way]
    return _front(problem, stage, found)


class Alone:
    """A stage as a step of its own; what comes from elsewhere costs nothing.

    Attributes
    ----------
    step : RematProblem
        The stage's operators without those that are held, its turn between them.
    """

    def __init__(self, problem: RematProblem, chain: Chain, stage: Stage) -> None:
        forward = [v for v in stage.forward if v not in chain.held]
        self._operators = operators = [*forward, -1, *stage.backward]
        inside = set(stage.backward)
        self._storages = sorted(s for v in operators if v >= 0 for s in problem.writes[v])
        self._result = frozenset(stage.result).intersection(self._storages)
        numbers = {s: i for i, s in enumerate(self._storages)}
        later = {s for v in range(problem.count) if v not in inside for s in problem.reads[v]}
        left = {s for v in inside for s in problem.writes[v]} & (problem.keep | later)

        def rows(table: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
            return tuple(
                tuple(numbers[s] for s in table[v] if s in numbers) if v >= 0 else ()
                for v in operators
            )

        # The turn leads to the whole backward part by a storage of no bytes.
        token, turn = len(self._storages), len(forward)
        reads, writes = list(rows(problem.reads)), list(rows(problem.writes))
        reads[turn] = tuple(numbers[s] for s in self._result)
        writes[turn] = (token,)
        reads[turn + 1 :] = [(*row, token) for row in reads[turn + 1 :]]
        self.step = RematProblem(
            time=tuple(problem.time[v] if v >= 0 else 0 for v in operators),
            size=(*(problem.size[s] for s in self._storages), 0),
            reads=tuple(reads),
            writes=tuple(writes),
            workspace=tuple(problem.workspace[v] if v >= 0 else 0 for v in operators),
            reuse=rows(problem.reuse),
            once=frozenset(
                i for i, v in enumerate(operators) if v in problem.once or v == problem.turn
            ),
            turn=turn,
            keep=frozenset(numbers[s] for s in left),
        )

    def way(self, sequence: list[int]) -> Way | None:
        """What a schedule of the step saves; None if it runs something twice before the turn."""
        turn = self.step.turn or 0
        if sequence[: turn + 1] != list(range(turn + 1)):
            return None
        made, saved = {len(self._storages)}, set[int]()
        for i in sequence[turn + 1 :]:
            saved.update(s for s in self.step.reads[i] if s not in made)
            made.update(self.step.writes[i])
        return Way(
            self._result.union(self._storages[s] for s in saved),
            tuple(self._operators[i] for i in sequence[turn + 1 :]),
        )


def _front(problem: RematProblem, stage: Stage, ways: list[Way]) -> list[Way]:
    """Those that no other beats in bytes saved, peak and time together; at most `MOST_WAYS`."""

    def cost(way: Way) -> tuple[int, int, int]:
        return (
            sum(problem.size[s] for s in way.saved),
            local_peak(problem, way.backward, way.saved, stage.source),
            sum(problem.time[v] for v in way.backward),
        )

    front: dict[tuple[int, int, int], Way] = {}
    for key, way in sorted(((cost(way), way) for way in ways), key=lambda pair: pair[0]):
        if not any(all(x <= y for x, y in zip(other, key, strict=True)) for other in front):
            front[key] = way
    kept = list(front.values())
    if len(kept) > MOST_WAYS:  # evenly, the ends among them
        picked = np.linspace(0, len(kept) - 1, MOST_WAYS).round().astype(int)
        kept = [kept[i] for i in picked]
    return kept
