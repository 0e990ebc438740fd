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
    aside : frozenset of int
        Storages that other stages read across cuts.
    held : frozenset of int
        Forward operators that run once and whose outputs stay: those that may not run again,
        and those most of whose bytes are aside.
    """

    stages: tuple[Stage, ...]
    aside: frozenset[int]
    held: frozenset[int]


def chain_of_stages(problem: RematProblem, a: Arrays, most: int) -> Chain:
    """At most ``most`` stages (cuts are thinned out evenly to that) of the given order.

    A storage that more than half of the forward part has to keep in any case, such as a mask
    that all layers read, does not prevent a cut, but stands aside.
    """
    pivot = pivot_of(problem, a)
    last = np.full(len(problem.size), -1)
    for v in range(pivot):
        for s in problem.reads[v]:
            last[s] = v
    aside = {
        s
        for s, w in enumerate(problem.writer)
        if 0 <= w < pivot and (a.op["single"][w] or last[s] - w > max(4, pivot / 2))
    }
    cuts = _cuts(problem, pivot, last, aside)
    thin = -(-(len(cuts) + 1) // most)
    cuts = cuts[thin - 1 :: thin] if thin > 1 else cuts
    ends, results = [p + 1 for p, _ in cuts] + [pivot], [r for _, r in cuts] + [()]
    stages, begin, source = [], 0, tuple[int, ...]()
    for end, result in zip(ends, results, strict=True):
        stages.append(Stage(tuple(range(begin, end)), (), source, result))
        begin, source = end, result
    stages = _with_backward(problem, pivot, stages, aside)
    held = {
        v
        for v in range(pivot)
        if a.op["single"][v]
        or 2 * sum(problem.size[s] for s in aside.intersection(problem.writes[v]))
        > sum(problem.size[s] for s in problem.writes[v])
    }
    return Chain(tuple(stages), frozenset(aside), frozenset(held))


def _cuts(
    problem: RematProblem, pivot: int, last: np.ndarray, aside: set[int]
) -> list[tuple[int, tuple[int, ...]]]:
    """``(p, result)``: of what has run up to ``p`` later forward operators read only that."""
    crossing: set[int] = set()
    ends: dict[int, list[int]] = {}
    cuts: list[tuple[int, tuple[int, ...]]] = []
    for p in range(pivot - 1):
        for s in problem.writes[p]:
            if last[s] > p and s not in aside:
                crossing.add(s)
                ends.setdefault(int(last[s]), []).append(s)
        crossing.difference_update(ends.get(p, ()))
        result = tuple(crossing)
        if len(result) <= 1 and (not cuts or cuts[-1][1] != result):
            cuts.append((p, result))
    return cuts


def _with_backward(
    problem: RematProblem, pivot: int, stages: list[Stage], aside: set[int]
) -> list[Stage]:
    """Each backward operator in the last stage where all that it reads is there.

    What is read by other stages' backward operators all the same is put ``aside``.
    """
    stage_of = {v: k for k, stage in enumerate(stages) for v in stage.forward}
    outward = {s: k + 1 for k, stage in enumerate(stages) for s in stage.result}
    backward: list[list[int]] = [[] for _ in stages]
    now = len(stages) - 1
    for v in range(pivot, problem.count):
        made = [s for s in problem.reads[v] if 0 <= problem.writer[s] < pivot and s not in aside]
        # A result is there in its own stage and in the next; anything else in its own alone.
        homes = [stage_of[problem.writer[s]] for s in made]
        if homes:
            nearest = min(outward.get(s, k) for s, k in zip(made, homes, strict=True))
            now = min(now, max(*homes, nearest))
        backward[now].append(v)
        for s, home in zip(made, homes, strict=True):
            if home != now and s not in stages[now].source:
                aside.add(s)
    return [replace(s, backward=tuple(b)) for s, b in zip(stages, backward, strict=True)]


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
