"""When a step is planned anew so that an arena fits, and when that is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fxmem.margin import Margin
from fxmem.plan import Plan
from tests.test_plan import small

MIB = 1 << 20
WHOLE = replace(
    small(), budget_bytes=100 * MIB, seconds=1.1, baseline_seconds=1.0, lower_bound_seconds=1.05
)


def test_twice_at_most_and_in_steps() -> None:
    margin = Margin()
    assert margin.wants_another(1, WHOLE)
    assert margin.spare_bytes == 100 * MIB // 400
    assert margin.wants_another(1, replace(WHOLE, seconds=1.101))
    assert not margin.wants_another(1, replace(WHOLE, seconds=1.101))
    # As fast as without: it may stay.
    assert margin.spare_bytes == 2 * (100 * MIB // 400)


def test_what_was_spared_in_vain_is_given_back() -> None:
    margin = Margin()
    slower = replace(WHOLE, seconds=1.12)
    assert margin.wants_another(MIB, WHOLE) and margin.wants_another(MIB // 2, slower)
    assert margin.wants_another(MIB // 2, slower)
    assert (margin.spare_bytes, margin.spares) == (0, 0)
    # Another search need not end as the first did: that is no reason to plan for ever.
    assert not margin.wants_another(MIB, replace(WHOLE, seconds=1.13))


@pytest.mark.parametrize(
    "plan",
    [
        replace(WHOLE, seconds=1.0),  # nothing is run again: a tighter plan would begin to
        replace(WHOLE, budget_bytes=MIB),  # small, and not close to its bound
    ],
)
def test_where_it_is_not_worth_it(plan: Plan) -> None:
    margin = Margin()
    assert not margin.wants_another(1, plan)
    assert margin.spare_bytes == 0


def test_too_far() -> None:
    assert not Margin().wants_another(3 * MIB, WHOLE)
