"""Random valid schedules of a problem, made without any solver."""

from __future__ import annotations

import random

from fxmem.solvers.remat import RematProblem


def random_schedule(problem: RematProblem, rng: random.Random, extra: float = 0.3) -> list[int]:
    """A random order that respects all rules, with up to ``extra`` of operators run again.

    Anything whose inputs have been computed may run: operators that belong to the backward
    part but need no tangent may come before the turn, and the other way round.
    """
    ran: set[int] = set()
    written: set[int] = {s for s in range(len(problem.size)) if problem.writer[s] < 0}
    pending = list(range(problem.count))
    queue = list(problem.ordered)
    schedule: list[int] = []

    def ready(operator: int) -> bool:
        if operator in problem.ordered and operator not in ran and queue[0] != operator:
            return False
        return all(s in written for s in problem.reads[operator])

    while pending:
        # Mostly near the traced order, so that lifetimes look like those of real plans.
        possible = [v for v in pending[: rng.choice((1, 2, 8, 64))] if ready(v)]
        if not possible:
            possible = [v for v in pending if ready(v)][:1]
        operator = rng.choice(possible)
        schedule.append(operator)
        pending.remove(operator)
        ran.add(operator)
        if operator in problem.ordered:
            queue.remove(operator)
        written.update(problem.writes[operator])
        while rng.random() < extra / (1 + extra):
            again = [v for v in ran if v not in problem.once and v != problem.turn]
            if not again:
                break
            schedule.append(rng.choice(again))
    return schedule


def lazy_schedule(problem: RematProblem, rng: random.Random) -> list[int]:
    """Forget a random part of what the forward made, and compute it again when it is asked for.

    What is forgotten is forgotten again after each use, so chains run many times.
    """
    assert problem.turn is not None
    share = rng.random()
    free = [v for v in range(problem.turn) if v not in problem.once and problem.writes[v]]
    forgotten = {v for v in free if rng.random() < share}
    schedule = list(range(problem.turn + 1))
    fresh = {s for v in schedule if v not in forgotten for s in problem.writes[v]}
    fresh |= {s for s in range(len(problem.size)) if problem.writer[s] < 0}

    def run(operator: int, depth: int = 0) -> None:
        for storage in problem.reads[operator]:
            if storage not in fresh:
                run(problem.writer[storage], depth + 1)
        schedule.append(operator)
        fresh.update(problem.writes[operator])

    for operator in range(problem.turn + 1, problem.count):
        run(operator)
        if rng.random() < 0.5:
            fresh -= {s for v in forgotten for s in problem.writes[v]}
    return schedule
