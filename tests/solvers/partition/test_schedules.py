"""Each schedule's list runs, once a microbatch and stage, with as many in flight as published."""

from __future__ import annotations

from collections import Counter

import pytest

from fxmem.solvers.partition import SCHEDULES, actions, in_flight
from fxmem.solvers.partition.simulate import compiled


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 8, 12])
def test_every_microbatch_once_and_no_rank_waits_for_ever(
    schedule: str, ranks: int, microbatches: int
) -> None:
    chunks = 2 if schedule == "interleaved" and microbatches % ranks == 0 else 1
    lists = actions(schedule, ranks, microbatches, chunks)
    count = Counter(action[1:] for order in lists for action in order)
    kinds = "FIW" if schedule == "zero-bubble" else "FB"
    every = [(k, s, m) for k in kinds for s in range(ranks * chunks) for m in range(microbatches)]
    assert count == Counter(every)
    assert all(a.rank == r == a.stage % ranks for r, order in enumerate(lists) for a in order)
    assert len(compiled(schedule, ranks, microbatches, chunks)) == len(every)


def test_in_flight() -> None:
    def most(schedule: str) -> list[int]:
        return [max(sum(h.values()) for h in in_flight(o)) for o in actions(schedule, 4, 8)]

    assert most("gpipe") == [8, 8, 8, 8]
    assert most("1f1b") == [4, 3, 2, 1]
    assert most("zero-bubble") == [4, 4, 4, 4]


def test_numbers_that_do_not_suit() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        actions("interleaved", 4, 6, 2)
    with pytest.raises(ValueError, match="one stage a rank"):
        actions("gpipe", 4, 8, 2)
    with pytest.raises(ValueError, match="positive"):
        actions("gpipe", 0, 8)
