"""Random problems and brute force, for the tests beside it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from functools import cache

from hypothesis import strategies as st

from fxmem.solvers.remat import RematProblem, ScheduleError, check


def random_problem(
    rng: random.Random, count: int, turn: bool, special: bool = True
) -> RematProblem:
    """A valid problem in a valid order; ``special``: with once, ordered, keep and reuse."""
    size: list[int] = []
    reads, writes, reuse = [], [], []
    for _ in range(count):
        row = [s for s in range(len(size)) if rng.random() < 0.35][-4:]
        reads.append(tuple(row))
        outputs = rng.choice([0, 1, 1, 1, 2]) if special else 1
        writes.append(tuple(range(len(size), len(size) + outputs)))
        size += [rng.randint(0, 4) for _ in range(outputs)]
        reuse.append(tuple(s for s in row if special and rng.random() < 0.6))
    pick = [v for v in range(count) if special and rng.random() < 0.12]
    drawn = [v for v in range(count) if special and rng.random() < 0.15]
    return RematProblem(
        time=tuple(rng.randint(1, 9) for _ in range(count)),
        size=tuple(size),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(rng.randint(0, 2) for _ in range(count)),
        reuse=tuple(reuse),
        once=frozenset(pick),
        ordered=tuple(drawn),
        turn=rng.randrange(count) if turn and count else None,
        keep=frozenset(s for s in range(len(size)) if rng.random() < 0.2),
        resident_bytes=rng.randint(0, 3),
    )


@st.composite
def problems(draw: st.DrawFn, most: int = 14) -> RematProblem:
    """A strategy over `random_problem`."""
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    return random_problem(rng, draw(st.integers(1, most)), draw(st.booleans()))


def optimum(problem: RematProblem, budget: int, slack: int) -> int | None:
    """Least total time within ``budget`` over all sequences of time <= base + ``slack``.

    Dijkstra over prefixes; only for a handful of operators.
    """
    best: int | None = None
    queue: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    limit = problem.base_time + slack
    while queue:
        total, sequence = heapq.heappop(queue)
        if len(set(sequence)) == problem.count:
            try:
                if check(problem, sequence)[1] <= budget:
                    best = total
                    break
            except ScheduleError:
                continue
        there = {s for v in sequence for s in problem.writes[v]}
        rest = sum(problem.time[v] for v in range(problem.count) if v not in sequence)
        for v in range(problem.count):
            if sequence[-1:] == (v,) or (v in sequence and v in {*problem.once, problem.turn}):
                continue
            if any(problem.writer[s] >= 0 and s not in there for s in problem.reads[v]):
                continue
            spent = total + problem.time[v]
            if spent + rest - (problem.time[v] if v not in sequence else 0) <= limit:
                heapq.heappush(queue, (spent, (*sequence, v)))
    return best


def shortest(problem: RematProblem, budget: int) -> int | None:
    """Least total time within ``budget`` over all sequences whatever; None: no sequence fits.

    Dijkstra over what has run and what is held, as bit sets; for up to about 8 operators. A copy
    is given up only by the run that makes it or one that reads it, and before the next is made.
    """
    stored = [s for s in range(len(problem.size)) if problem.writer[s] >= 0]
    bit = {s: 1 << i for i, s in enumerate(stored)}

    def mask(storages: Iterable[int]) -> int:
        return sum({bit[s] for s in storages if s in bit})

    @cache
    def volume(held: int) -> int:
        return sum(problem.size[s] for s in stored if held & bit[s])

    reads, writes = [mask(r) for r in problem.reads], [mask(w) for w in problem.writes]
    keep, everything = mask(problem.keep), (1 << problem.count) - 1
    before = [
        {u for u in problem.ordered if v in problem.ordered and u < v} for v in range(problem.count)
    ]
    done: set[tuple[int, int, int]] = set()
    queue = [(0, 0, 0, 0)]  # time, what has run, what is held, what of that crossed the turn
    while queue:
        time, ran, held, crossed = heapq.heappop(queue)
        if (ran, held, crossed) in done:
            continue
        done.add((ran, held, crossed))
        if ran == everything and held & keep == keep:
            return time
        for v in range(problem.count):
            again = bool(ran >> v & 1)
            if reads[v] & ~held or held & writes[v]:
                continue
            if (again and (v in problem.once or v == problem.turn)) or (
                not again and any(not ran >> u & 1 for u in before[v])
            ):
                continue
            during = held | writes[v]
            needed = volume(during) + problem.workspace[v] + problem.resident_bytes
            gain = problem.size[problem.writes[v][0]] if problem.writes[v] else 0
            may = [bit[s] for s in problem.reuse[v] if s in bit and problem.size[s] == gain]
            after = held if v == problem.turn else crossed
            choice = reads[v] | writes[v]
            dropped = choice
            while True:
                spared = gain if any(m & dropped & reads[v] & ~crossed for m in may) else 0
                if needed - spared <= budget:
                    left = during & ~dropped
                    entry = (time + problem.time[v], ran | 1 << v, left, after & left)
                    if entry[1:] not in done:
                        heapq.heappush(queue, entry)
                if dropped == 0:
                    break
                dropped = (dropped - 1) & choice
    return None


def bounded_problem(seed: int) -> tuple[RematProblem, int, int]:
    """A small problem, a budget that can be met, and the least time within it."""
    rng = random.Random(seed)
    problem = random_problem(rng, 5, turn=seed % 3 == 0)
    peak = check(problem, range(problem.count))[1]
    while True:
        budget = rng.randint(problem.floor, peak)
        best = optimum(problem, budget, slack=8)
        if best is not None:
            return problem, budget, best
