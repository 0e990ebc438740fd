"""`check` and `replay` on cases small enough to count by hand."""

from __future__ import annotations

import pytest

from fxmem.solvers.remat import RematProblem, ScheduleError, check, replay


def chain(**changes: object) -> RematProblem:
    """a -> b -> c, and c reads a too; sizes 4, 4, 2."""
    fields: dict[str, object] = {
        "time": (5, 7, 1),
        "size": (4, 4, 2),
        "reads": ((), (0,), (1, 0)),
        "writes": ((0,), (1,), (2,)),
    }
    return RematProblem(**{**fields, **changes})  # type: ignore[arg-type]


def test_bytes_of_each_step() -> None:
    assert replay(chain(), [0, 1, 2]) == [4, 8, 10]
    assert check(chain(), [0, 1, 2]) == (13, 10)
    # A copy dies at its last read: with a run again, its first copy ends at b.
    assert replay(chain(), [0, 1, 0, 2]) == [4, 8, 8, 10]


def test_workspace_and_residents() -> None:
    problem = chain(workspace=(0, 3, 0), resident_bytes=100)
    assert replay(problem, [0, 1, 2]) == [104, 111, 110]


def test_an_unread_output_lives_for_its_step() -> None:
    problem = RematProblem((1, 1), (3, 5), ((), ()), ((0,), (1,)))
    assert replay(problem, [0, 1]) == [3, 5]


def test_what_is_kept_lives_to_the_end_in_its_last_copy() -> None:
    problem = RematProblem((1, 1), (3, 5), ((), ()), ((0,), (1,)), keep=frozenset({0}))
    assert replay(problem, [0, 1]) == [3, 8]
    assert replay(problem, [0, 1, 0]) == [3, 5, 3]


def test_reuse_only_at_the_last_read() -> None:
    problem = chain(reuse=((), (0,), ()))
    assert replay(problem, [0, 1, 2]) == [4, 8, 10]  # c still reads a
    assert replay(problem, [0, 1, 0, 2]) == [4, 4, 8, 10]  # this copy ends at b


def test_reuse_needs_equal_size() -> None:
    problem = chain(reuse=((), (), (0, 1)))
    assert replay(problem, [0, 1, 2]) == [4, 8, 10]


def test_no_reuse_across_the_turn() -> None:
    problem = RematProblem(
        time=(1, 0, 1),
        size=(4, 0, 4),
        reads=((), (), (0, 1)),
        writes=((0,), (1,), (2,)),
        reuse=((), (), (0,)),
        turn=1,
    )
    assert replay(problem, [0, 1, 2]) == [4, 4, 8]
    assert replay(problem, [0, 1, 0, 2]) == [4, 0, 4, 4]


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ([0, 1], "operator 2 never runs"),
        ([1, 0, 2], "reads storage 0"),
        ([0, 1, 2, 9], "no operator 9"),
    ],
)
def test_violations(sequence: list[int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(chain(), sequence)


def test_once_turn_and_ordered() -> None:
    with pytest.raises(ScheduleError, match="must run once"):
        check(chain(once=frozenset({0})), [0, 1, 0, 2])
    with pytest.raises(ScheduleError, match="must run once"):
        check(chain(turn=1), [0, 1, 1, 2])
    loose = RematProblem((1, 1), (1, 1), ((), ()), ((0,), (1,)), ordered=(1, 0))
    with pytest.raises(ScheduleError, match="order is fixed"):
        check(loose, [0, 1])
    assert check(loose, [1, 0, 1]) == (3, 1)


def test_floor() -> None:
    assert chain().floor == 10
    assert chain(reuse=((), (0,), ()), size=(4, 4, 0)).floor == 8
