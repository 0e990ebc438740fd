"""The best answer mixes all three choices, and goes to one of them as a link gets fast or slow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fxmem.solvers.transfer import Tier, TransferProblem, TransferSolution, check, solve
from tests.solvers.transfer.brute import brute
from tests.solvers.transfer.transfer_cases import layers, mixed, tier


def reruns(answer: TransferSolution) -> dict[int, int]:
    """How often each operator runs again."""
    counts = Counter(a.index for a in answer.actions if a.kind == "run")
    return {v: n - 1 for v, n in counts.items() if n > 1}


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (0, 2))])
def test_all_three_are_mixed(seed: int) -> None:
    problem, budget = mixed(seed)
    best = brute(problem, budget)
    answer = solve(problem, budget, time_limit=3, seed=seed)
    assert best is not None
    assert check(problem, answer.actions, budget).makespan == answer.makespan == best[0]
    assert (answer.moved, reruns(answer)) == ({0}, {1: 1})
    assert answer.lower_bound <= best[0]
    # Without moving, and without computing again, it takes longer.
    still = replace(problem, movable=frozenset())
    once = replace(problem.remat, once=frozenset(range(problem.remat.count)))
    for other in (still, replace(problem, remat=once)):
        alone = brute(other, budget)
        assert alone is None or alone[0] > best[0]


def test_a_fast_link_leaves_nothing_to_compute_again() -> None:
    remat = layers(12, 1_000_000)
    fast = Tier("fast", 10**18, 10**18)
    problem = TransferProblem(remat, (fast,), frozenset(range(24)))
    answer = solve(problem, 5000, time_limit=4)
    assert check(problem, answer.actions, 5000).makespan == answer.makespan
    assert not reruns(answer)
    assert answer.moved
    assert answer.makespan <= remat.base_time + 100  # each transfer takes 1 ns


def test_over_a_slow_link_nothing_moves() -> None:
    remat = layers(12, 1_000_000)
    slow = Tier("slow", 1, 1)
    problem = TransferProblem(remat, (slow,), frozenset(range(24)))
    answer = solve(problem, 5000, time_limit=4)
    assert check(problem, answer.actions, 5000).makespan == answer.makespan
    assert not answer.moved
    assert sum(reruns(answer).values()) > 0
    assert answer.makespan < 2 * remat.base_time
    assert answer.lower_bound > remat.base_time


def test_a_link_that_hides_costs_nothing() -> None:
    remat = layers(12, 1_000_000)
    even = Tier("even", 2_000_000_000, 2_000_000_000, 1000, 1000)
    problem = TransferProblem(remat, (even,), frozenset(range(24)))
    answer = solve(problem, 5000, time_limit=4)
    assert answer.makespan == remat.base_time
    assert answer.status == "optimal"


def test_below_what_recomputing_can_reach() -> None:
    # Values that nothing can compute again, twice as many as fit.
    remat = replace(layers(8, 1000), once=frozenset(range(17)))
    problem = TransferProblem(remat, (tier(1),), frozenset(range(16)))
    assert solve(replace(problem, movable=frozenset()), 5000, time_limit=1).status == "infeasible"
    answer = solve(problem, 5000, time_limit=4)
    assert answer.makespan == remat.base_time
    assert check(problem, answer.actions, 5000).makespan == answer.makespan
    least = solve(problem, 1000, time_limit=4)
    assert least.status == "infeasible"
    assert least.peak == remat.floor


def test_a_small_fast_tier_and_a_large_slow_one_are_both_used() -> None:
    remat = replace(layers(12, 1000), once=frozenset(range(25)))
    tiers = (
        Tier("disk", 250_000_000, 250_000_000),
        Tier("host", 10**10, 10**10, capacity=3500),
    )
    problem = TransferProblem(remat, tiers, frozenset(range(24)))
    answer = solve(problem, 4000, time_limit=4)
    replay = check(problem, answer.actions, 4000)
    assert replay.makespan == answer.makespan >= answer.lower_bound
    assert 0 < replay.tier_peak[1] <= 3500
    assert replay.tier_peak[0] > 0
