"""The best answer mixes all three choices, and goes to one of them as a link gets fast or slow."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from fxmem.solvers.remat import RematProblem
from fxmem.solvers.transfer import Tier, TransferProblem, TransferSolution, check, solve
from tests.solvers.transfer.brute import brute
from tests.solvers.transfer.transfer_cases import tier


def mixed(seed: int) -> tuple[TransferProblem, int]:
    """Values that backward reads in reverse, with room for one of the large ones at a time.

    The first is large and slow to compute (to be moved), the second large and quick (to be
    computed again, from a small value), the third small and slow (to be kept).
    """
    rng = random.Random(seed)
    large, slow = rng.randint(8, 12), rng.randint(40, 60)
    remat = RematProblem(
        time=(slow, rng.randint(1, 3), slow, 0, slow, slow, slow),
        # Saved, and handed on, by each of three layers; then three gradients.
        size=(large, 1, large, 1, 2, 1, 1, 1),
        reads=((), (1,), (3,), (4,), (4,), (2, 5), (0, 6)),
        writes=((0, 1), (2, 3), (4,), (), (5,), (6,), (7,)),
        workspace=(0, 0, 0, 0, large, 0, 0),
        turn=3,
        keep=frozenset({7}),
        resident_bytes=rng.randint(0, 5),
    )
    budget = remat.resident_bytes + large + rng.randint(4, 5)
    return TransferProblem(remat, (tier(1),), frozenset({0, 2, 4})), budget


def reruns(answer: TransferSolution) -> dict[int, int]:
    """How often each operator runs again."""
    counts = Counter(a.index for a in answer.actions if a.kind == "run")
    return {v: n - 1 for v, n in counts.items() if n > 1}


@pytest.mark.parametrize("seed", range(3))
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


def layers(count: int, nanoseconds: int) -> RematProblem:
    """Each layer saves a large value, and hands a small one on; backward in reverse."""
    turn = count
    forward = [(0, 1)] + [(2 * i, 2 * i + 1) for i in range(1, count)]
    gradient = 2 * count
    reads: list[tuple[int, ...]] = [()] + [(2 * i - 1,) for i in range(1, count)]
    reads += [(2 * count - 1,)]
    writes = [*forward, (gradient,)]
    for i in reversed(range(count)):
        reads.append((2 * i, gradient))
        writes.append((gradient + 1,))
        gradient += 1
    return RematProblem(
        time=(*(nanoseconds for _ in range(count)), 0, *(2 * nanoseconds for _ in range(count))),
        size=(*(v for _ in range(count) for v in (1000, 100)), *(100 for _ in range(count + 1))),
        reads=tuple(reads),
        writes=tuple(writes),
        turn=turn,
        keep=frozenset({gradient}),
    )


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
