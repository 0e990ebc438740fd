"""Pivots all over the graph: a chain, one of each part, and a bound that no schedule beats."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fxmem.solvers.remat.bound import boundary_bound, spread
from fxmem.solvers.remat.chainbound import chain_bound
from fxmem.solvers.remat.integerbound import integer_bound
from fxmem.solvers.remat.mincut import Boundary
from tests.solvers.remat.remat_cases import bounded_problem
from tests.solvers.remat.test_solve import segments


@pytest.mark.parametrize("seed", range(30))
def test_never_above_the_optimum(seed: int) -> None:
    problem, budget, best = bounded_problem(seed)
    found = [Boundary(problem, v) for v in range(problem.count)]
    found.sort(key=lambda boundary: -boundary_bound(boundary, budget).extra)
    for windows in (1, 2, 5):
        chain = spread(found, windows)
        assert chain_bound(problem, chain, budget, 5.0) <= best
        assert integer_bound(problem, chain, budget, 5.0) <= best


def test_one_of_each_part_and_each_precedes_the_next() -> None:
    problem = segments(3, 3)
    ranked = [Boundary(problem, v) for v in range(problem.count)]
    chain = spread(ranked, 4)
    places = [boundary.pivot for boundary in chain]
    assert len({place * 4 // problem.count for place in places}) == len(places) == 4
    for first, second in pairwise(chain):
        assert second.before[first.pivot]


def test_the_best_stays() -> None:
    problem = segments(3, 3)
    ranked = [Boundary(problem, v) for v in (9, 8, 7, 0)]
    assert [boundary.pivot for boundary in spread(ranked, 1)] == [9]
    assert spread([], 3) == []
