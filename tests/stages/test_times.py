"""Seconds of a step by a schedule's list of actions."""

from __future__ import annotations

import pytest

from fxmem.runtime.pipelining import actions, ranks_of
from fxmem.stages.times import step_seconds

M = 8


def seconds(schedule: str, ranks: int, forward: float, backward: float, link: float = 0.0) -> float:
    places = ranks_of(schedule, ranks)
    one = {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2}
    links = [link] * (len(places) - 1)
    orders = actions(schedule, ranks, M)
    return step_seconds(orders, places, [one] * len(places), links, links)


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_stages_take_what_the_formulas_say(ranks: int) -> None:
    for schedule in ("gpipe", "1f1b"):
        assert seconds(schedule, ranks, 1, 2) == (M + ranks - 1) * 3
        # The first microbatch crosses each cut twice, and the last waits for no other.
        assert seconds(schedule, ranks, 1, 2, 0.5) >= (M + ranks - 1) * 3 + (ranks - 1)
    # Two stages a rank halve the bubble; without waiting for weights' gradients it is less still.
    assert seconds("interleaved", ranks, 1, 2) == 6 * M + 3 * (ranks - 1)
    assert 3 * M < seconds("zero-bubble", ranks, 1, 2) < (M + ranks - 1) * 3
    assert 6 * M < seconds("zbv", ranks, 1, 2) < 6 * M + 3 * (ranks - 1)


def test_the_slowest_stage_counts() -> None:
    orders = actions("1f1b", 2, M)
    fast, slow = {"F": 1.0, "B": 2.0}, {"F": 2.0, "B": 4.0}
    assert step_seconds(orders, (0, 1), [fast, slow], [0.0], [0.0]) == 6 * M + 3
    assert step_seconds(orders, (0, 1), [slow, fast], [0.0], [0.0]) == 6 * M
