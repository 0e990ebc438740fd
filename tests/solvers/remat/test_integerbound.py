"""The bound in whole numbers: never above an optimum, at least the one in fractions."""

from __future__ import annotations

import pytest

from fxmem.solvers.remat import solve
from fxmem.solvers.remat.bound import boundary_bound
from fxmem.solvers.remat.integerbound import integer_bound
from fxmem.solvers.remat.mincut import Boundary
from tests.solvers.remat.remat_cases import bounded_problem, optimum


def chains(boundaries: list[Boundary], most: int) -> list[Boundary]:
    """Pivots in the given order, each an ancestor of the next."""
    chain: list[Boundary] = []
    for boundary in boundaries:
        if len(chain) < most and all(boundary.before[other.pivot] for other in chain):
            chain.append(boundary)
    return chain


@pytest.mark.parametrize("seed", range(40))
def test_never_above_the_optimum(seed: int) -> None:
    problem, budget, best = bounded_problem(seed)
    boundaries = [Boundary(problem, v) for v in range(problem.count)]
    for most in (1, 2, 4):
        chain = chains(boundaries, most)
        if any(boundary.capacity(budget) < 0 for boundary in chain):
            continue
        found = integer_bound(problem, chain, budget, 5.0)
        assert found <= best
        assert integer_bound(problem, chain, budget, 5.0, known=best) <= best
        if most == 1:
            single = boundary_bound(chain[0], budget)
            if single.extra >= 0:
                assert found >= problem.base_time + single.extra


def test_proves_what_fractions_do_not() -> None:
    """Of two equal values one has to go; half of each would do in fractions."""
    from fxmem.solvers.remat import RematProblem

    problem = RematProblem.from_edges(
        size=[4, 4, 1, 4, 1],
        time=[3, 3, 1, 1, 1],
        edge=[(0, 2), (1, 2), (2, 3), (3, 4), (0, 4), (1, 4)],
        keep=[4],
    )
    budget = 13
    answer = solve(problem, budget, time_limit=2)
    assert answer.status == "optimal"
    assert answer.total_time == optimum(problem, budget, slack=8)
