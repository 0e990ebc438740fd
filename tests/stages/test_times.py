"""Seconds of a step by a schedule's list of actions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.runtime.pipelining import SCHEDULES, actions, ranks_of
from fxmem.stages.times import least_seconds, step_seconds

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


POSITIVE = st.floats(0.01, 10)


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.sampled_from(list(SCHEDULES)),
    ranks=st.sampled_from([2, 4]),
    data=st.data(),
)
def test_no_schedule_beats_the_bound(schedule: str, ranks: int, data: st.DataObject) -> None:
    places = ranks_of(schedule, ranks)
    each = [
        {"F": f, "B": i + w, "I": i, "W": w}
        for f, i, w in data.draw(
            st.lists(
                st.tuples(POSITIVE, POSITIVE, POSITIVE),
                min_size=len(places),
                max_size=len(places),
            )
        )
    ]
    links = [0.0] * (len(places) - 1)
    took = step_seconds(actions(schedule, ranks, M), places, each, links, links)
    work = sum(one["F"] + one["B"] for one in each)
    in_a_row = SCHEDULES[schedule][1:] == (1, False)
    assert took >= least_seconds(work, ranks, M, in_a_row) * (1 - 1e-9)


def test_the_bound_is_nearly_met_by_the_cuts_that_it_names() -> None:
    each = [{"F": 1.0 * (7 / 8) ** i, "B": 2.0 * (7 / 8) ** i} for i in range(2)]
    took = step_seconds(actions("1f1b", 2, M), (0, 1), each, [0.0], [0.0])
    assert 1 <= took / least_seconds(3 + 3 * 7 / 8, 2, M, in_a_row=True) < 1.03
