"""The chain partition is exact."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.partition import NoPartition, partition_chain

Rows = list[tuple[int, int]]


def brute(rows: Rows, parts: int, capacity: int | None) -> int | None:
    """The least largest load over all cuts; None if no cut keeps the capacity."""
    best = None
    for cuts in combinations(range(1, len(rows)), min(parts, len(rows)) - 1):
        bounds = [0, *cuts, len(rows)]
        pieces = [rows[a:b] for a, b in pairwise(bounds)]
        if capacity is not None and any(sum(s for _, s in p) > capacity for p in pieces):
            continue
        worst = max(sum(v for v, _ in p) for p in pieces)
        best = worst if best is None else min(best, worst)
    return best


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(0, 60)),
)
def test_against_brute_force(rows: Rows, parts: int, capacity: int | None) -> None:
    load, size = [v for v, _ in rows], [s for _, s in rows]
    wanted = brute(rows, parts, capacity)
    if wanted is None:
        with pytest.raises(NoPartition):
            partition_chain(load, parts, size, capacity)
        return
    found = partition_chain(load, parts, size, capacity)
    assert list(found) == sorted(found) and set(found) == set(range(min(parts, len(rows))))
    totals = [sum(v for v, p in zip(load, found, strict=True) if p == q) for q in set(found)]
    assert max(totals) == wanted
    if capacity is not None:
        held = [sum(s for s, p in zip(size, found, strict=True) if p == q) for q in set(found)]
        assert max(held) <= capacity


def test_edges() -> None:
    assert partition_chain([], 3) == ()
    assert partition_chain([5], 3) == (0,)
    assert partition_chain([1, 1, 1, 3], 2) == (0, 0, 0, 1)
    with pytest.raises(ValueError, match="positive"):
        partition_chain([1], 0)
    with pytest.raises(ValueError, match="equally many"):
        partition_chain([1, 2], 1, [1])
