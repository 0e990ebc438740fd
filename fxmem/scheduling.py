"""Find a schedule within the budget, or say what stands in the way."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from .errors import InfeasibleBudget
from .files.plan_cache import PlanCache
from .lower import Lowered
from .solvers.remat import RematProblem, RematSolution, check, replay, solve

if TYPE_CHECKING:
    from .planning import Options

T = TypeVar("T")

# The schedule of least peak that any search has found, by problem. A budget that an error
# named as the least feasible must be met when it is asked for, whatever the next search finds.
_LEAST: dict[RematProblem, tuple[int, ...]] = {}
# The schedule that was found last: a budget that is smaller by a few bytes is sought from there.
_LAST: dict[RematProblem, tuple[int, ...]] = {}
# The last ones of all problems that differ in nothing but what is in use at the turn. Whatever the
# search finds for one of them may do for another.
_KIN: dict[RematProblem, tuple[tuple[int, ...], ...]] = {}
_MOST_REMEMBERED, _MOST_KIN = 32, 16
# Of the time limit, for that.
_NEARBY_SHARE = 0.2
# A plan this close to its bound is not worth more seconds: timings vary by more.
CLOSE = 2e-3


def find_schedule(lowered: Lowered, budget: int | None, options: Options) -> RematSolution:
    """The solver's schedule within ``budget`` bytes (None: no limit).

    Raises
    ------
    InfeasibleBudget
        None was found; says the least bytes found and which tensors need them.
    """
    problem = lowered.problem
    held_back = options.reserve_bytes + options.spare_bytes
    if budget is not None and max(replay(problem, range(problem.count))) + held_back > budget:
        held_back += lowered.aside_bytes  # needed only where something is run again
    limit = None if budget is None else max(0, budget - held_back)

    solution = _search(problem, limit, options)
    if limit is None or solution.status in ("optimal", "feasible"):
        _remember(_LAST, problem, solution.sequence)
        _remember_kin(problem, solution.sequence)
        return solution
    least = solution
    if options.solver == "auto":  # one by name answers for itself: it is compared with others
        least = _least(problem, _of_kin(problem, solution, limit))
        _remember_kin(problem, least.sequence)
    if least.sequence and least.peak <= limit:
        return replace(least, status="feasible")
    assert budget is not None
    minimum = least.peak + held_back if least.sequence else None
    raise InfeasibleBudget(budget, minimum, blockers(lowered, least))


def _search(problem: RematProblem, limit: int | None, options: Options) -> RematSolution:
    """What the solver finds, or found in an earlier run."""
    cache, start, time_limit = None, None, options.time_limit
    if options.spare_bytes and (start := _LAST.get(problem)) is not None:
        time_limit *= _NEARBY_SHARE
    if limit is not None and options.cache:
        searched = (options.solver, options.seed, time_limit, CLOSE, start)
        cache = PlanCache(problem, limit, *searched)
        if (known := cache.find()) is not None:
            return known

    def tell(seconds: float, time: int, peak: int, bound: int) -> None:
        options.tell("solve", seconds=seconds, time=time, peak=peak, bound=bound)

    solution = solve(
        problem,
        limit,
        solver=options.solver,
        time_limit=time_limit,
        seed=options.seed,
        progress=tell,
        gap=CLOSE,
        start=start,
    )
    if solution.interrupted:
        warnings.warn(
            "fxmem: the search was interrupted; the best plan until then is used.",
            RuntimeWarning,
            stacklevel=2,
        )
    elif cache is not None and solution.status in ("optimal", "feasible"):
        cache.keep(solution)
    return solution


def _least(problem: RematProblem, found: RematSolution) -> RematSolution:
    """The better in peak of ``found`` and what is remembered, which is then remembered."""
    known = _LEAST.get(problem)
    if known is not None:
        total, peak = check(problem, known)
        if not found.sequence or peak < found.peak:
            return replace(found, sequence=known, total_time=total, peak=peak)
    if found.sequence:
        _remember(_LEAST, problem, found.sequence)
    return found


def _of_kin(problem: RematProblem, found: RematSolution, limit: int) -> RematSolution:
    """The fastest of its kin's schedules that fits, else the least of all and of ``found``."""
    best = found
    for sequence in _KIN.get(_without_turn(problem), ()):
        total, peak = check(problem, sequence)
        fits = peak <= limit
        if not best.sequence or (
            total < best.total_time if fits and best.peak <= limit else peak < best.peak
        ):
            best = replace(found, sequence=sequence, total_time=total, peak=peak)
    return best


def _remember_kin(problem: RematProblem, sequence: tuple[int, ...]) -> None:
    if not sequence:
        return
    kin = _without_turn(problem)
    others = tuple(known for known in _KIN.get(kin, ()) if known != sequence)
    _remember(_KIN, kin, (*others, sequence)[-_MOST_KIN:])


def _without_turn(problem: RematProblem) -> RematProblem:
    """The same of every problem that differs in nothing but what is in use at the turn."""
    if problem.turn is None:
        return problem
    workspace = list(problem.workspace)
    workspace[problem.turn] = 0
    return replace(problem, workspace=tuple(workspace))


def _remember(known: dict[RematProblem, T], problem: RematProblem, what: T) -> None:
    while len(known) >= _MOST_REMEMBERED and problem not in known:
        del known[next(iter(known))]
    known[problem] = what


def blockers(lowered: Lowered, solution: RematSolution) -> tuple[tuple[str, int], ...]:
    """Name and bytes of what is needed at once where the best schedule found peaks."""
    problem = lowered.problem
    if solution.sequence:
        held = replay(problem, solution.sequence)
        operator = solution.sequence[held.index(max(held))]
    else:
        operator = max(range(problem.count), key=problem.working_set.__getitem__)
    touched = (*problem.reads[operator], *problem.writes[operator])
    rows = [(problem.storage_names[s], problem.size[s]) for s in dict.fromkeys(touched)]
    rows.append((f"workspace of {problem.names[operator]}", problem.workspace[operator]))
    rows.append(("parameters, inputs and optimizer state", problem.resident_bytes))
    return tuple(sorted((r for r in rows if r[1]), key=lambda row: -row[1]))
