"""Every solver's answers against the judge; the bound against brute force."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.remat import (
    SOLVERS,
    RematProblem,
    RematSolution,
    ScheduleError,
    check,
    lean,
    least_peak,
    solve,
    warm_up,
)
from tests.clock import within
from tests.solvers.remat.remat_cases import optimum, problems, random_problem


def verify(problem: RematProblem, budget: int | None, solution: RematSolution) -> None:
    """The answer says the truth about itself."""
    assert check(problem, solution.sequence) == (solution.total_time, solution.peak)
    assert solution.lower_bound >= problem.base_time
    if solution.status in ("optimal", "feasible"):
        assert budget is None or solution.peak <= budget
        assert solution.total_time >= solution.lower_bound
    else:
        assert budget is not None
        assert solution.peak > budget
    if solution.status == "optimal":
        assert solution.total_time == solution.lower_bound


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(problem=problems(), share=st.floats(0, 1), reorder=st.booleans())
def test_answers_hold(solver: str, problem: RematProblem, share: float, reorder: bool) -> None:
    peak = check(problem, range(problem.count))[1]
    low = min(problem.floor, peak)
    budget = low + int(share * (peak - low))
    solution = solve(problem, budget, solver, time_limit=0.15, reorder=reorder)
    verify(problem, budget, solution)
    if not reorder:
        assert list(dict.fromkeys(solution.sequence)) == list(range(problem.count))
    verify(problem, None, solve(problem, None, solver, time_limit=0.1))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    problem=problems(), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), reorder=st.booleans()
)
def test_a_schedule_to_start_from(
    problem: RematProblem, shares: tuple[float, float], reorder: bool
) -> None:
    """That of another budget: it is improved or brought under this one, or not, truthfully."""
    peak = check(problem, range(problem.count))[1]
    low = min(problem.floor, peak)
    before, budget = (low + int(share * (peak - low)) for share in shares)
    known = solve(problem, before, time_limit=0.1, reorder=reorder)
    found = solve(problem, budget, time_limit=0.1, reorder=reorder, start=known.sequence)
    verify(problem, budget, found)
    if known.peak <= budget:
        assert found.status in ("optimal", "feasible")
        assert found.total_time <= known.total_time


def test_what_is_no_schedule_is_no_start() -> None:
    problem = RematProblem.from_edges([1, 1, 1], [1, 1, 1], [(0, 1), (1, 2)])
    with pytest.raises(ScheduleError, match="has not written yet"):
        solve(problem, 2, start=[1, 0, 2])
    with pytest.raises(ScheduleError):
        solve(problem, 2, start=[0, 1])
    free = RematProblem.from_edges([1, 2, 1], [1, 1, 1], [(0, 2), (1, 2)])
    with pytest.raises(ValueError, match="another order"):
        solve(free, 3, start=[1, 0, 2], reorder=False)


@pytest.mark.parametrize("seed", range(40))
def test_bound_and_answer_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, rng.randint(2, 5), turn=seed % 3 > 0, special=seed % 2 == 0)
    peak = check(problem, range(problem.count))[1]
    budget = rng.randint(min(problem.floor, peak), peak)
    solution = solve(problem, budget, time_limit=0.1)
    verify(problem, budget, solution)
    best = optimum(problem, budget, slack=8)
    if best is not None:
        assert solution.lower_bound <= best
        assert solution.status in ("optimal", "feasible")
        assert solution.total_time >= best
    elif solution.status == "optimal":
        assert solution.total_time > problem.base_time + 8


def test_a_budget_that_fits_is_answered_at_once() -> None:
    problem = random_problem(random.Random(1), 12, turn=True)
    peak = check(problem, range(12))[1]
    for budget in (None, peak, peak + 100):
        solution = solve(problem, budget)
        assert solution.sequence == tuple(range(12))
        assert solution.status == "optimal"
        assert solution.gap == 0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(problem=problems())
def test_below_the_floor_nothing_fits(problem: RematProblem) -> None:
    if problem.floor == 0:
        return
    solution = solve(problem, problem.floor - 1, time_limit=0.1)
    verify(problem, problem.floor - 1, solution)
    assert solution.status == "infeasible"


def segments(layers: int, width: int) -> RematProblem:
    """A training step of equal layers: forward chain, turn, backward reading all of it."""
    forward = layers * width
    reads: list[tuple[int, ...]] = [() if v == 0 else (v - 1,) for v in range(forward)]
    reads.append((forward - 1,))
    for v in range(forward):
        reads.append((forward + v, forward - 1 - v))
    count = 2 * forward + 1
    return RematProblem(
        time=(10,) * forward + (0,) + (20,) * forward,
        size=(100,) * count,
        reads=tuple(reads),
        writes=tuple((v,) for v in range(count)),
        turn=forward,
    )


@pytest.mark.parametrize("share", [0.8, 0.6, 0.4])
def test_equal_layers_come_close_to_the_bound(share: float) -> None:
    problem = segments(12, 5)
    budget = int(share * check(problem, range(problem.count))[1])
    solution = solve(problem, budget, time_limit=4)
    verify(problem, budget, solution)
    assert solution.status in ("optimal", "feasible")
    assert solution.gap < 0.04


def test_least_peak_and_same_seed_same_answer() -> None:
    problem = segments(6, 4)
    solution = least_peak(problem, time_limit=2)
    verify(problem, None, solution)
    assert solution.peak <= 1100
    first, second = (solve(problem, 1500, seed=3, time_limit=20) for _ in range(2))
    assert first.sequence == second.sequence


@pytest.mark.parametrize("fresh", [True, False])
def test_the_least_peak_is_met_when_asked_for(fresh: bool) -> None:
    problem = segments(8, 5)
    refused = solve(problem, 0, time_limit=0.5)
    assert refused.status == "infeasible"
    verify(problem, 0, refused)
    if fresh:  # as in another process: the same path leads there again
        lean._known.clear()
    solution = solve(problem, refused.peak, time_limit=2)
    verify(problem, refused.peak, solution)
    assert solution.status in ("optimal", "feasible")


def test_what_is_remembered_is_of_this_problem() -> None:
    problem, other = segments(6, 4), segments(6, 5)
    solution = least_peak(problem, time_limit=0.5)
    known = lean.recall(problem, False)
    assert known is not None
    assert check(problem, known.tolist())[1] <= solution.peak
    assert lean.recall(other, False) is None
    assert lean.recall(problem, True) is None


def test_warm_up_from_several_threads() -> None:
    threads = [threading.Thread(target=warm_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    within(0.1, warm_up)


def test_progress_and_unknown_solver() -> None:
    problem = segments(6, 4)
    seen = []
    solution = solve(problem, 1500, time_limit=1, progress=lambda *values: seen.append(values))
    assert seen[-1][1:] == (solution.total_time, solution.peak, solution.lower_bound)
    with pytest.raises(ValueError, match="auto"):
        solve(problem, 1500, solver="guess")
