"""Offsets from a recording: who lies in the arena, and what the step holds."""

from __future__ import annotations

import json

import numpy as np

from fxmem.arena_plan import ArenaPlan, Request, plan_arena

KIB = 1024


def events(*rows: tuple[int, int, int]) -> np.ndarray:
    return np.array(rows, np.int64)


# A loss that stays, a saved value, a temporary of each part, and a gradient that stays.
STEP = events(
    (0, 100 * KIB, 0),  # saved
    (1, 60 * KIB, 1),  # temporary
    (2, 4, 1),  # loss
    (1, -60 * KIB, 1),
    (3, 50 * KIB, 2),  # temporary of backward
    (0, -100 * KIB, 2),
    (4, 80 * KIB, 3),  # gradient
    (3, -50 * KIB, 3),
)
TURN = 4
NAMES = ("first", "second", "third", "fourth")


def test_offsets_by_hand() -> None:
    plan = plan_arena(STEP, TURN, NAMES, tangent_bytes=4)
    assert [r.operator for r in plan.requests] == ["first", "second", "second", "third", "fourth"]
    assert [r.phase for r in plan.requests] == ["forward"] * 3 + ["backward"] * 2
    assert [(r.start, r.end) for r in plan.requests] == [(0, 5), (1, 3), (2, 8), (4, 7), (6, 8)]
    assert plan.live_bytes == plan.arena_bytes == 160 * KIB
    assert plan.requests[2] == Request("second", "forward", 4, 2, 8, None)
    assert plan.unplaced == {"second": 4}
    assert plan.outside_bytes == 4
    # The whole arena, once it is touched; the loss; and what backward starts from.
    assert plan.peak_bytes == 160 * KIB + 4 + 4
    assert plan.share == 1 - 4 / sum(r.bytes for r in plan.requests)
    assert plan.ratio == 1.0


def test_a_segment_counts_from_its_first_use() -> None:
    """What comes only in backward does not count while the forward part holds more."""
    rows = events(
        (0, 64 * KIB, 0), (0, -64 * KIB, 0), (1, 64 * KIB, 1), (2, 64 * KIB, 1), (1, -64 * KIB, 1)
    )
    plan = plan_arena(rows, 2, NAMES)
    assert plan.segment_bytes == 64 * KIB
    assert plan.peak_bytes == plan.arena_bytes == 128 * KIB


def test_nothing_to_place() -> None:
    assert plan_arena(events((0, 4, 0)), 1, NAMES) is None


def test_json() -> None:
    plan = plan_arena(STEP, TURN, NAMES)
    assert ArenaPlan.from_row(json.loads(json.dumps(plan.to_row()))) == plan
