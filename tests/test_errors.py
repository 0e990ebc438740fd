"""What the errors say and carry."""

from __future__ import annotations

import copy
import pickle

import pytest

from fxmem import errors
from fxmem.errors import FxmemError, InfeasibleBudget

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("InfeasibleBudget", (FxmemError, ValueError)),
        ("BudgetSyntaxError", (FxmemError, ValueError)),
        ("TraceError", (FxmemError,)),
        ("PlanMismatch", (FxmemError,)),
        ("PoolError", (FxmemError,)),
        ("UnsupportedDevice", (FxmemError,)),
        ("BudgetWarning", (UserWarning,)),
    ],
)
def test_bases(name: str, bases: tuple[type, ...]) -> None:
    assert getattr(errors, name).__bases__ == bases


def test_warning_is_no_error() -> None:
    assert not issubclass(errors.BudgetWarning, FxmemError)


def test_infeasible_says_what_to_do() -> None:
    error = InfeasibleBudget(
        100 * MIB, minimum_bytes=110 * MIB + 1, blockers=[("logits", 8 * MIB), ("wte", 40 * MIB)]
    )
    assert error.budget_bytes == 100 * MIB
    assert error.minimum_bytes == 110 * MIB + 1
    assert error.blockers == (("logits", 8 * MIB), ("wte", 40 * MIB))
    assert error.device is None
    assert str(error) == (
        "no plan fits the budget of 100.0 MiB (104857600 bytes).\n"
        "The least feasible found is 110.0 MiB (115343361 bytes), 10.0 MiB more.\n"
        "In the way: wte 40.0 MiB, logits 8.0 MiB.\n"
        "What to do: give a budget of at least 115343361 bytes; or make the batch smaller; "
        "or let values be moved to a directory on disk with offload=...; or use an optimizer "
        "with less state."
    )


def test_infeasible_with_nothing_found() -> None:
    error = InfeasibleBudget(MIB, device="cuda:1")
    assert error.minimum_bytes is None
    assert error.blockers == ()
    assert str(error) == (
        "no plan fits the budget of 1.0 MiB (1048576 bytes) on cuda:1.\n"
        "No budget was found at which a plan exists.\n"
        "What to do: give a larger budget or a longer time_limit; or make the batch smaller; "
        "or let values be moved to a directory on disk with offload=...; or use an optimizer "
        "with less state."
    )


def test_infeasible_keeps_all_blockers_and_shows_the_largest() -> None:
    blockers = [(f"t{size}", size) for size in range(1, 8)]
    error = InfeasibleBudget(1, 28, blockers)
    assert error.blockers == tuple(blockers)
    assert "In the way: t7 7 B, t6 6 B, t5 5 B, t4 4 B, t3 3 B, 2 more.\n" in str(error)


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_infeasible_survives_a_process_boundary(again) -> None:
    error = InfeasibleBudget(10, 20, [("x", 15)], device="cpu")
    twin = again(error)
    assert type(twin) is InfeasibleBudget
    assert str(twin) == str(error)
    assert (twin.budget_bytes, twin.minimum_bytes, twin.blockers, twin.device) == (
        10,
        20,
        (("x", 15),),
        "cpu",
    )


def test_infeasible_is_caught_as_value_error() -> None:
    with pytest.raises(ValueError, match="no plan fits"):
        raise InfeasibleBudget(1)
