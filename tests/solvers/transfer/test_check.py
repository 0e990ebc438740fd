"""The judge: equal to `fxmem.solvers.remat.check` without transfers, and by hand with them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers import remat
from fxmem.solvers.remat import RematProblem, ScheduleError
from fxmem.solvers.transfer import Action, Tier, TransferProblem, check
from tests.solvers.remat.remat_cases import random_problem
from tests.solvers.transfer.transfer_cases import tier

# 0 makes a (8 bytes), 1 and 2 make b and c without it, 3 reads a and c.
PLAIN = RematProblem(
    time=(10, 10, 10, 10),
    size=(8, 1, 1, 1),
    reads=((), (0,), (1,), (0, 2)),
    writes=((0,), (1,), (2,), (3,)),
)
PROBLEM = TransferProblem(PLAIN, (tier(2),), frozenset({0}))
MOVED = (
    Action("run", 0),
    Action("out", 0),
    Action("run", 1),
    Action("out_done", 0),
    Action("run", 2),
    Action("in", 0),
    Action("in_done", 0),
    Action("run", 3),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 12), st.booleans())
def test_without_transfers_it_is_the_other_check(seed: int, count: int, turn: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, count, turn)
    sequence = list(range(count))
    for _ in range(rng.randint(0, 3)):
        sequence.insert(rng.randint(0, count), rng.randrange(count))
    actions = [Action("run", v) for v in sequence]
    try:
        total, peak = remat.check(problem, sequence)
    except ScheduleError:
        with pytest.raises(ScheduleError):
            check(TransferProblem(problem, ()), actions)
        return
    replay = check(TransferProblem(problem, ()), actions)
    assert (replay.makespan, replay.peak, replay.stall) == (total, peak, 0)
    assert list(replay.memory) == remat.replay(problem, sequence)


def test_by_hand() -> None:
    replay = check(PROBLEM, MOVED)
    # The copy out takes 16 from 10 on, the copy back 16 from 36 on.
    assert replay.starts == (0, 10, 10, 20, 26, 36, 36, 52)
    assert replay.ends == (10, 10, 20, 26, 36, 36, 52, 62)
    assert replay.memory == (8, 8, 9, 9, 2, 9, 9, 10)
    assert (replay.peak, replay.makespan, replay.stall) == (10, 62, 22)
    assert replay.tier_peak == (8,)
    assert replay.link_bytes == {(0, "out"): 8, (0, "in"): 8}
    out, back = replay.transfers
    assert (out.asked, out.done, out.start, out.end) == (1, 3, 10, 26)
    assert (back.asked, back.done, back.start, back.end) == (5, 6, 36, 52)


def test_a_link_serves_in_order_and_directions_do_not_wait_for_each_other() -> None:
    plain = RematProblem(
        time=(1, 1, 1, 1),
        size=(4, 2, 1, 1),
        reads=((), (), (0,), (1,)),
        writes=((0,), (1,), (2,), (3,)),
    )
    problem = TransferProblem(plain, (Tier("d", 10**9, 10**9 // 2, 3, 5),), frozenset({0, 1}))
    actions = [
        *(Action("run", 0), Action("run", 1), Action("out", 0), Action("out", 1)),
        *(Action("out_done", 0), Action("in", 0), Action("out_done", 1), Action("in", 1)),
        *(Action("in_done", 0), Action("run", 2), Action("in_done", 1), Action("run", 3)),
    ]
    times = [(t.start, t.end) for t in check(problem, actions).transfers]
    assert times == [(2, 9), (9, 14), (9, 22), (22, 31)]


def test_tolls_are_paid_as_transfers_are_asked_for() -> None:
    """The processor is held up, the link is not; what it waits for is counted apart."""
    tolls = replace(PROBLEM.tiers[0], write_toll=5 * 10**8, read_toll=10**9)
    dear, plain = check(replace(PROBLEM, tiers=(tolls,)), MOVED), check(PROBLEM, MOVED)
    (out, back), (first, _) = dear.transfers, plain.transfers
    assert (out.start, out.end) == (first.start, first.end)
    paid = [dear.ends[t.asked] - dear.starts[t.asked] for t in (out, back)]
    assert paid == [4, 8]
    runs = sum(PROBLEM.remat.time)
    assert dear.makespan == runs + sum(paid) + dear.stall
    assert dear.memory == plain.memory


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (MOVED[:3] + MOVED[4:], "storage 0 is not on tier 0 yet"),
        ((MOVED[1], MOVED[0], *MOVED[2:]), "no copy of storage 0 to move out"),
        ((*MOVED[:6], MOVED[7]), "never waited for"),
        ((*MOVED[:4], *MOVED[1:]), "went to tier 0 before"),
        ((*MOVED[:6], *MOVED[5:]), "is on its way from tier 0"),
        ((*MOVED[:5], *MOVED[6:]), "is not on its way from tier 0"),
        (MOVED[:-1], "operator 3 never runs"),
        (tuple(a._replace(tier=1) for a in MOVED), "may not be moved to tier 1"),
        ((*MOVED[:5], Action("out", 2), *MOVED[5:]), "storage 2 may not be moved"),
    ],
)
def test_first_violation_is_named(actions: tuple[Action, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(PROBLEM, actions)


def test_budget_and_capacity() -> None:
    assert check(PROBLEM, MOVED, 10).peak == 10
    with pytest.raises(ScheduleError, match=r"position 7: operator 3 holds 10 bytes"):
        check(PROBLEM, MOVED, 9)
    small = TransferProblem(PLAIN, (tier(2, capacity=7),), frozenset({0}))
    with pytest.raises(ScheduleError, match=r"position 1: tier tier holds 8 bytes of 7"):
        check(small, MOVED)


def test_readers_between_in_and_in_done_read_the_older_copy() -> None:
    plain = RematProblem((1, 1, 1), (4, 1, 1), ((), (0,), (0,)), ((0,), (1,), (2,)))
    problem = TransferProblem(plain, (tier(1),), frozenset({0}))
    actions = [Action("run", 0), Action("out", 0), Action("out_done", 0), Action("in", 0)]
    actions += [Action("run", 1), Action("in_done", 0), Action("run", 2)]
    assert check(problem, actions).memory == (4, 4, 4, 8, 9, 4, 5)
