"""When a transfer is waited for: as late as the budget allows, and not before it is done."""

from __future__ import annotations

import numpy as np

from fxmem.solvers.remat import RematProblem
from fxmem.solvers.transfer import TransferProblem, check
from fxmem.solvers.transfer.place import Request, drain, place
from fxmem.solvers.transfer.reduction import reduce
from fxmem.solvers.transfer.skeleton import skeleton
from tests.solvers.transfer.transfer_cases import layers, tier

TIME = (10, 10, 10, 10, 10)


def test_done_when_the_link_is_through() -> None:
    during = np.full(5, 3)
    request = Request(ready=0, held=1, due=5, size=4, took=25, link=0)
    # Asked for at 10, through at 35: before run 4, and in memory beyond run 1 until then.
    assert drain(TIME, during, 100, [request]) == [4]
    assert during.tolist() == [3, 3, 7, 7, 3]


def test_waited_for_when_bytes_or_time_run_out() -> None:
    during = np.full(5, 3)
    request = Request(ready=0, held=1, due=5, size=4, took=25, link=0)
    assert drain(TIME, during, 6, [request]) == [2]
    assert during.tolist() == [3, 3, 3, 3, 3]
    due = Request(ready=0, held=1, due=3, size=4, took=25, link=0)
    assert drain(TIME, np.full(5, 3), 100, [due]) == [3]


def test_a_link_serves_one_after_the_other() -> None:
    requests = [Request(0, 0, 5, 1, 10, 0), Request(0, 0, 5, 1, 10, 0), Request(0, 0, 5, 1, 10, 1)]
    assert drain(TIME, np.full(5, 3), 100, requests) == [2, 3, 2]


def test_everything_moved_hides_where_there_is_room() -> None:
    remat: RematProblem = layers(6, 1000)
    problem = TransferProblem(remat, (tier(1),), frozenset(range(0, 12, 2)))
    moved = (0, 2, 4)
    reduced = reduce(remat, dict.fromkeys(moved, 1))
    turn = reduced.operator.index(remat.turn)
    order = list(range(reduced.remat.count))
    for s in moved:  # back right before its one reader
        reader = next(
            i for i, v in enumerate(reduced.operator) if v > remat.turn and s in remat.reads[v]
        )
        order.insert(order.index(reader), reduced.loaded.index(s))
    assert order.index(turn) < order.index(reduced.loaded.index(0), turn)
    plan = skeleton(remat, reduced, order)
    assert plan.runs == tuple(range(remat.count))
    for outs_first in (True, False):
        tight = check(problem, place(problem, plan, dict.fromkeys(moved, 0), 0, outs_first))
        assert tight.peak == plan.during.max()
        roomy = check(problem, place(problem, plan, dict.fromkeys(moved, 0), 10**6, outs_first))
        assert roomy.makespan == remat.base_time < tight.makespan
        assert roomy.stall == 0
