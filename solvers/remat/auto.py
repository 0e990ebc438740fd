"""`solve`: one entry for every solver, and the pipeline behind ``auto``."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from .arrays import Arrays, flatten
from .bound import Bound, lower_bound
from .evaluate import evaluate, timeline
from .exact import LARGEST, exact
from .lean import lean_start, recall, remember
from .opening import given_start, openings
from .problem import RematProblem
from .refine import Refined
from .relieve import relieve
from .rules import RULES
from .search import search
from .solution import RematSolution
from .squeeze import squeeze
from .warm import warm_up
from .worker import Incumbent, Progress

SOLVERS: dict[str, str] = {
    "auto": "boundary cuts under position prices, then annealing; proves a bound",
    "ilp": "a full model of every step, proved optimal on small graphs; else what auto finds",
    "cpsat": "retention intervals in the given order by CP-SAT (Bartan et al., 2023)",
    "anneal": "annealing from the given order",
    "rotor": "chain of stages, each saved whole, by its input or not (Beaumont et al., 2019)",
    "checkmate-lp": "linear relaxation of every stage, rounded and repaired (Jain et al., 2020)",
    "blocks": "each kind of stage solved once in several ways, combined exactly (Rockmate, 2023)",
    "mincut": "best choice at the turn for the budget, recomputed on demand",
    "greedy": "most bytes per second first, until the peak fits",
    "none": "keep everything",
    "all": "recompute everything that may be",
    "sqrt": "segments of sqrt(n) operators (Chen et al., 2016)",
}

# Where nothing can fit, a decent least peak is wanted soon: seconds, and moves of each thread.
SOON, SOON_MOVES = 4.0, 1_000_000


def solve(
    problem: RematProblem,
    budget: int | None,
    solver: str = "auto",
    time_limit: float = 60,
    reorder: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    gap: float = 0.0,
    start: Sequence[int] | None = None,
) -> RematSolution:
    """A fast schedule within ``budget``.

    Parameters
    ----------
    problem : RematProblem
    budget : int or None
        Bytes, residents included; None: no limit.
    solver : str
        A key of `SOLVERS`.
    time_limit : float
        Seconds, without those that `warm_up` takes.
    reorder : bool
        If False, first runs keep the given order.
    seed : int
        Equal seeds give equal answers, unless time runs out first.
    progress : callable, optional
        Called as ``progress(seconds, total_time, peak, lower_bound)`` on each improvement.
    gap : float
        If positive, an answer this close to the bound will do, and the search also ends where
        it finds nothing more; else it takes all its time, unless optimality is proved.
    start : sequence of int, optional
        A schedule, such as that of a budget nearby: the search begins there and nowhere else.

    Returns
    -------
    RematSolution
        Ctrl-C during the search returns the best so far.

    Raises
    ------
    ValueError
        No such solver.
    ScheduleError
        ``start`` is no schedule of this problem.
    """
    if solver not in SOLVERS:
        raise ValueError(f"no solver {solver!r}; there are {', '.join(SOLVERS)}")
    if budget is not None and budget < 0:
        raise ValueError(f"budget {budget} is negative")
    warm_up()
    began = clock.monotonic()
    a = flatten(problem)
    limit = 1 << 60 if budget is None else budget
    order = np.arange(problem.count)
    first = [order] if start is None else [given_start(problem, start, reorder)]
    incumbent = Incumbent(a, limit, problem.base_time, progress)
    incumbent.offer(order)
    if incumbent.least.size == 0 and problem.count:
        raise ValueError("the given order is not a valid schedule")
    if solver == "ilp":
        return _exactly(problem, incumbent, began + time_limit, reorder, seed)
    if solver in RULES:
        return _by_rule(problem, incumbent, solver, budget, began + time_limit)
    if incumbent.sequence is not None or problem.count == 0:
        return _answer(problem, incumbent, problem.base_time, solver)
    deadline = began + time_limit
    # Bound and starts gain nothing from more than the shares of 10 s that they get.
    prelude = min(time_limit, 10.0)
    bound, interrupted = Bound(problem.base_time, 0.0), False
    try:
        if limit >= problem.floor:
            bound = _bound(problem, a, limit, 0.15 * prelude)
        if limit < problem.floor or bound.time < 0:
            bound = Bound(-1, 0.0)
            soon = min(deadline, began + SOON)
            _squeeze(problem, incumbent, 0, soon, seed, not reorder, SOON_MOVES)
            return _answer(problem, incumbent, -1, solver)
        incumbent.bound = bound.time
        if start is not None:
            first.append(relieve(a, first[0], limit, 1.0, deadline))
            incumbent.offer(first[1])
        elif solver == "auto":
            first = openings(problem, incumbent, bound.price, reorder, prelude, gap)
            if incumbent.sequence is None:
                # Nothing fits yet. Where annealing finds no way either, look for any schedule
                # that fits, whatever its time, then shorten that.
                now = clock.monotonic()
                soon = now + 0.15 * (deadline - now)
                search(
                    incumbent, first, bound.price, soon, seed, not reorder, 0.15 * time_limit, gap
                )
            if incumbent.sequence is None:
                now = clock.monotonic()
                half = now + 0.6 * (deadline - now)
                _squeeze(problem, incumbent, limit, half, seed, not reorder)
                if incumbent.sequence is not None:
                    first.insert(0, incumbent.sequence)
        with Refined(problem, incumbent, bound.pivots, deadline):
            search(incumbent, first, bound.price, deadline, seed, not reorder, time_limit, gap)
    except KeyboardInterrupt:
        interrupted = True
    answer = _answer(problem, incumbent, max(bound.time, incumbent.proved), solver)
    return replace(answer, interrupted=interrupted)


def least_peak(
    problem: RematProblem, time_limit: float = 10, seed: int = 0, reorder: bool = True
) -> RematSolution:
    """The schedule of least peak that is found, whatever its time.

    ``status`` is ``"optimal"`` where the peak meets `RematProblem.floor` (or another proof),
    else ``"feasible"``; ``lower_bound`` is still one on time, ``floor`` the one on bytes.
    """
    warm_up()
    deadline = clock.monotonic() + time_limit
    a = flatten(problem)
    incumbent = Incumbent(a, 1 << 60, problem.base_time)
    incumbent.offer(np.arange(problem.count))
    if problem.count:
        with suppress(KeyboardInterrupt):
            _squeeze(problem, incumbent, 0, deadline, seed, not reorder)
    sequence = incumbent.least
    total, peak, _ = evaluate(a, sequence, 1 << 60)
    return RematSolution(
        tuple(int(v) for v in sequence), total, peak, problem.base_time,
        "optimal" if peak <= problem.floor else "feasible", "least_peak", problem.floor,
    )  # fmt: skip


def _squeeze(
    problem: RematProblem,
    incumbent: Incumbent,
    goal: int,
    deadline: float,
    seed: int,
    fixed: bool,
    moves: int = 1 << 60,
) -> None:
    """Offer a schedule whose peak is at most ``goal``, or the least in reach.

    What was remembered comes last: where time allows, equal calls give equal answers.
    """
    lean = Incumbent(incumbent.a, 1 << 60, 0)
    try:
        lean.offer(lean_start(problem, incumbent.a))
        now = clock.monotonic()
        margin_until = now + 0.3 * (deadline - now)
        squeeze(lean, problem.floor, goal, deadline, seed, fixed, moves, margin_until)
    finally:
        known = recall(problem, fixed)
        if known is not None and lean.least_peak > goal:
            lean.offer(known)
        remember(problem, fixed, lean.least)
        incumbent.offer(lean.least)


def _bound(problem: RematProblem, a: Arrays, budget: int, seconds: float) -> Bound:
    order = np.arange(problem.count)
    gap, saved = np.empty(len(order) + 1, np.int64), np.empty(len(order), np.int64)
    timeline(a, order, gap, saved)
    return lower_bound(problem, budget, gap[:-1] + a.op["extra"] - saved, seconds)


def _exactly(
    problem: RematProblem, incumbent: Incumbent, deadline: float, reorder: bool, seed: int
) -> RematSolution:
    """`exact`, begun at what a quarter of the time finds; all of it where that is too large."""
    soon = (0.25 if problem.count**2 < LARGEST else 1.0) * (deadline - clock.monotonic())
    first = solve(problem, incumbent.budget, "auto", soon, reorder, seed, incumbent.progress)
    if first.status in ("optimal", "infeasible"):
        return replace(first, solver="ilp")
    known = first.sequence if first.status == "feasible" else None
    left = deadline - clock.monotonic()
    found = exact(problem, incumbent.budget, known, first.lower_bound, reorder, left)
    incumbent.history.extend(first.history)
    incumbent.proved = first.lower_bound
    incumbent.offer(np.array(first.sequence, np.int64))
    if found.sequence is not None:
        incumbent.offer(np.array(found.sequence, np.int64))
    return _answer(problem, incumbent, found.bound, "ilp")


def _by_rule(
    problem: RematProblem, given: Incumbent, solver: str, budget: int | None, deadline: float
) -> RematSolution:
    bound = problem.base_time
    if budget is not None and given.sequence is None:
        left = max(0.0, deadline - clock.monotonic())
        fits = budget >= problem.floor
        bound = _bound(problem, given.a, budget, min(1.0, 0.15 * left)).time if fits else -1
    if bound < 0:
        return _answer(problem, given, bound, solver)
    incumbent = Incumbent(given.a, given.budget, problem.base_time, given.progress)
    incumbent.offer(RULES[solver](problem, given.a, budget, deadline))
    return _answer(problem, incumbent, bound, solver)


def _answer(problem: RematProblem, incumbent: Incumbent, bound: int, solver: str) -> RematSolution:
    sequence = incumbent.least if incumbent.sequence is None else incumbent.sequence
    if problem.count == 0:
        sequence = np.zeros(0, np.int64)
    total, peak, _ = evaluate(incumbent.a, sequence, 1 << 60)
    if incumbent.sequence is not None or problem.count == 0:
        status = "optimal" if total <= max(bound, problem.base_time) else "feasible"
    else:
        status = "infeasible" if bound < 0 else "unknown"
    bound = max(bound, problem.base_time)
    history = incumbent.history
    if history:
        history = [*history, (clock.monotonic() - incumbent.began, total, bound)]
    return RematSolution(
        tuple(int(v) for v in sequence), total, peak, bound,
        status, solver, problem.floor, tuple(history),
    )  # fmt: skip
