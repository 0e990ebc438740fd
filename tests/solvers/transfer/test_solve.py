"""`solve`: its answers pass the judge, keep the budget, and never beat the bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.transfer import TransferProblem, check, solve
from tests.solvers.transfer.transfer_cases import problems


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
