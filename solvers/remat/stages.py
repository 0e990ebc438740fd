"""A problem as a chain of stages: what `rotor` and `blocks` plan on.

The forward part is cut where a single storage leads from what has run to what has not. A stage
is the operators between two cuts and the operators of the backward part that read its storages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .arrays import Arrays
from .heuristics import pivot_of
from .problem import RematProblem


@dataclass(frozen=True)
class Stage:
    """Operators between two cuts.

    Attributes
    ----------
    forward, backward : tuple of int
        Operators in the given order.
    source, result : tuple of int
        The storage that crosses the cut before and the one after, if any.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    source: tuple[int, ...]
    result: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """Stages in forward order, and what stands outside the chain.

    Attributes
    ----------
    stages : tuple of Stage
    held : frozenset of int
        Forward operators that run once and whose outputs stay: those that may not run again,
        and those whose outputs other stages read across cuts.
    """

    stages: tuple[Stage, ...]
    held: frozenset[int]


def chain_of_stages(problem: RematProblem, a: Arrays, most: int) -> Chain:
    """At most ``most`` stages (cuts are thinned out evenly to that) of the given order.

    A storage that more than half of the forward part has to keep in any case, such as a mask
    that all layers read, does not prevent a cut: its writer is held.
    """
    pivot = pivot_of(problem, a)
    last = np.full(len(problem.size), -1)
    for v in range(pivot):
        for s in problem.reads[v]:
            last[s] = v
    writer = problem.writer
    held = {
        w
        for s, w in enumerate(writer)
        if 0 <= w < pivot
        and (a.op["single"][w] or s in problem.keep or last[s] - w > max(4, pivot / 2))
    }
    cuts = _cuts(problem, pivot, last, held)
    thin = -(-(len(cuts) + 1) // most)
    cuts = cuts[thin - 1 :: thin] if thin > 1 else cuts
    ends, results = [p + 1 for p, _ in cuts] + [pivot], [r for _, r in cuts] + [()]
    stages, begin, source = [], 0, tuple[int, ...]()
    for end, result in zip(ends, results, strict=True):
        stages.append(Stage(tuple(range(begin, end)), (), source, result))
        begin, source = end, result
    return _with_backward(problem, pivot, stages, held)


def _cuts(
    problem: RematProblem, pivot: int, last: np.ndarray, held: set[int]
) -> list[tuple[int, tuple[int, ...]]]:
    """``(p, result)``: of what has run up to ``p`` later forward operators read only that."""
    crossing: set[int] = set()
    ends: dict[int, list[int]] = {}
    cuts: list[tuple[int, tuple[int, ...]]] = []
    for p in range(pivot - 1):
        for s in problem.writes[p]:
            if last[s] > p and p not in held:
                crossing.add(s)
                ends.setdefault(int(last[s]), []).append(s)
        crossing.difference_update(ends.get(p, ()))
        result = tuple(crossing)
        if len(result) <= 1 and (not cuts or cuts[-1][1] != result):
            cuts.append((p, result))
    return cuts


def _with_backward(problem: RematProblem, pivot: int, stages: list[Stage], held: set[int]) -> Chain:
    """Each backward operator in the last stage where all that it reads is there.

    What is read by other stages' backward operators all the same is held.
    """
    stage_of = {v: k for k, stage in enumerate(stages) for v in stage.forward}
    outward = {s: k + 1 for k, stage in enumerate(stages) for s in stage.result}
    backward: list[list[int]] = [[] for _ in stages]
    now = len(stages) - 1
    for v in range(pivot, problem.count):
        # A result is there in its own stage and in the next; anything else in its own alone.
        places = [
            (stage_of[problem.writer[s]], outward.get(s, stage_of[problem.writer[s]]))
            for s in problem.reads[v]
            if 0 <= problem.writer[s] < pivot and problem.writer[s] not in held
        ]
        if places:
            now = min(now, max(max(k for k, _ in places), min(k for _, k in places)))
        backward[now].append(v)
        for s in problem.reads[v]:
            w = problem.writer[s]
            if 0 <= w < pivot and stage_of[w] != now and s not in stages[now].source:
                held.add(w)
    return Chain(
        tuple(replace(s, backward=tuple(b)) for s, b in zip(stages, backward, strict=True)),
        frozenset(held),
    )


def made_for(
    problem: RematProblem, operators: Sequence[int], held: frozenset[int], wanted: Iterable[int]
) -> tuple[int, ...]:
    """Those of ``operators`` that have to run again so that ``wanted`` is there."""
    wanted = set(wanted)
    chosen = []
    for v in reversed(operators):
        if v not in held and not wanted.isdisjoint(problem.writes[v]):
            chosen.append(v)
            wanted.update(problem.reads[v])
    return tuple(reversed(chosen))


def local_peak(
    problem: RematProblem, operators: Sequence[int], begin: Iterable[int], end: Iterable[int]
) -> int:
    """Most bytes alive while ``operators`` run, of storages in ``begin`` or that they write.

    What is in ``end`` lives on; what nobody reads any more dies.
    """
    own = {s for v in operators for s in problem.writes[v]} | set(begin)
    alive, most = own.intersection(end), 0
    for v in reversed(operators):
        outputs, reads = set(problem.writes[v]), own.intersection(problem.reads[v])
        during = sum(problem.size[s] for s in alive | outputs | reads) + problem.workspace[v]
        if outputs:
            gain = problem.size[problem.writes[v][0]]
            if any(
                s in reads and s not in alive and problem.size[s] == gain for s in problem.reuse[v]
            ):
                during -= gain
        most = max(most, during)
        alive = (alive - outputs) | reads
    return max(most, sum(problem.size[s] for s in alive))
