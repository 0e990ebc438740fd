"""`solve`: its answers pass the judge, keep the budget, and never beat the bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.transfer import Action, ScheduleError, Tier, TransferProblem, check, solve
from fxmem.solvers.transfer.bound import explore
from tests.solvers.transfer.transfer_cases import SECOND, layers, mixed, problems


@settings(max_examples=25, deadline=None)
@given(problems(), st.floats(0, 1))
def test_answers_are_valid(problem: TransferProblem, share: float) -> None:
    plain = check(problem, [("run", v) for v in range(problem.remat.count)])
    floor = min(problem.remat.floor, plain.peak)
    budget = floor + int(share * (plain.peak - floor))
    answer = solve(problem, budget, time_limit=0.5)
    replay = check(problem, answer.actions)
    assert (answer.makespan, answer.peak) == (replay.makespan, replay.peak)
    if answer.status in ("optimal", "feasible"):
        assert replay.peak <= budget
        assert answer.lower_bound <= answer.makespan
        assert (answer.status == "optimal") == (answer.lower_bound == answer.makespan)
    else:
        assert replay.peak > budget


def test_a_start_is_never_lost_and_progress_is_told() -> None:
    problem, budget = mixed(0)
    first = solve(problem, budget, time_limit=2)
    told: list[tuple[float, int, int, int]] = []
    again = solve(
        problem, budget, time_limit=0.2, start=first.actions, progress=lambda *row: told.append(row)
    )
    assert again.makespan == first.makespan
    assert (again.solver, again.actions) == ("start", first.actions)
    assert [row[1:] for row in told] == [(first.makespan, first.peak, problem.remat.base_time)]


def test_an_invalid_start_is_refused() -> None:
    problem, budget = mixed(0)
    with pytest.raises(ScheduleError, match="operator 6 never runs"):
        solve(problem, budget, start=[Action("run", v) for v in range(6)])


def test_close_enough_ends_at_once() -> None:
    problem, budget = mixed(1)
    first = solve(problem, budget, time_limit=2)
    answer = solve(problem, budget, start=first.actions, gap=0.5, time_limit=60)
    assert answer.seconds < 1
    assert answer.status == "feasible"
    assert answer.makespan <= 1.5 * answer.lower_bound


def test_without_a_limit_nothing_is_done() -> None:
    problem, _ = mixed(2)
    answer = solve(problem, None)
    assert answer.actions == tuple(Action("run", v) for v in range(problem.remat.count))
    assert (answer.status, answer.makespan) == ("optimal", problem.remat.base_time)


def test_what_cannot_fit_is_proved_so_and_the_least_is_told() -> None:
    problem, _ = mixed(3)
    floor = problem.remat.floor
    answer = solve(problem, floor - 1, time_limit=1)
    assert answer.status == "infeasible"
    assert answer.least_peak == answer.peak == check(problem, answer.actions).peak == floor


@settings(max_examples=15, deadline=None)
@given(problems(most=10), st.floats(0, 1), st.sampled_from([0, SECOND, 10**15]))
def test_what_fits_over_fast_links_fits_over_slow_ones(
    problem: TransferProblem, share: float, toll: int
) -> None:
    plain = check(problem, [("run", v) for v in range(problem.remat.count)])
    budget = plain.peak - int(share * (plain.peak - problem.remat.floor))
    fast, slow = (
        replace(problem, tiers=tuple(replace(t, **change) for t in problem.tiers))
        for change in (
            {"write_bandwidth": 10**15, "read_bandwidth": 10**15, "write_toll": 0, "read_toll": 0},
            {
                "write_bandwidth": 1000,
                "read_bandwidth": 1000,
                "write_toll": toll,
                "read_toll": toll,
            },
        )
    )
    if solve(fast, budget, time_limit=0.5).status in ("optimal", "feasible"):
        assert solve(slow, budget, time_limit=1).status in ("optimal", "feasible")


@pytest.mark.parametrize("toll", [0, 1, SECOND, 10**15])
def test_time_that_runs_out_before_anything_is_explored(toll: int, monkeypatch) -> None:
    """A machine that is busy elsewhere, and links that are dear: moving is the only way left."""
    remat = layers(12, 1_000_000)
    once = replace(remat, once=frozenset(range(remat.count)))
    dear = Tier("dear", SECOND, SECOND, write_toll=toll, read_toll=toll)
    problem = TransferProblem(once, (dear,), frozenset(range(24)))
    monkeypatch.setitem(solve.__globals__, "explore", lambda turn, _: explore(turn, 0))
    answer = solve(problem, 5000, time_limit=1)
    assert answer.status in ("optimal", "feasible")
    assert check(problem, answer.actions).peak <= 5000


def test_residents_stay() -> None:
    problem, budget = mixed(4)
    size = (*problem.remat.size, 7)
    remat = replace(problem.remat, size=size)
    more = replace(problem, remat=remat, movable=problem.movable | {len(size) - 1})
    answer = solve(more, budget, time_limit=1)
    assert len(size) - 1 not in answer.moved
    assert check(more, answer.actions, budget).makespan == answer.makespan
