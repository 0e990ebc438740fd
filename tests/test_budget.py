"""Budgets as users write them."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fxmem.budget import Budget, format_bytes
from fxmem.errors import BudgetSyntaxError

sizes = st.integers(min_value=1, max_value=1 << 50)
UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (123, 123),
        (np.int64(4096), 4096),
        ("123", 123),
        ("1_000_000", 10**6),
        ("  6GiB ", 6 * 2**30),
        ("6 gib", 6 * 2**30),
        ("6GIB", 6 * 2**30),
        ("500 MB", 500 * 10**6),
        ("500mb", 500 * 10**6),
        ("1.5 GB", 1_500_000_000),
        ("1.5 GiB", 1_610_612_736),
        (".5kB", 500),
        ("2 KB", 2000),
        ("2 kb", 2000),
        ("2 KiB", 2048),
        ("7 bytes", 7),
        ("7b", 7),
        ("1 TB", 10**12),
        ("1 TiB", 2**40),
        ("0.1 GiB", 107_374_182),  # rounded down: a limit may not grow
        ("1.9 B", 1),
    ],
)
def test_bytes(value: Any, expected: int) -> None:
    budget = Budget.parse(value)
    assert budget == Budget(bytes=expected)
    assert type(budget.bytes) is int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (1.0, 1.0),
        (1e-9, 1e-9),
        (np.float64(0.25), 0.25),
        (np.float32(0.25), 0.25),
        (Fraction(1, 4), 0.25),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1.0", 1.0),
        ("50%", 0.5),
        ("12.5 %", 0.125),
        ("100%", 1.0),
    ],
)
def test_share(value: Any, expected: float) -> None:
    budget = Budget.parse(value)
    assert budget == Budget(share=expected)
    assert type(budget.share) is float


def test_none_is_no_limit() -> None:
    assert Budget.parse(None) == Budget() == Budget(bytes=None, share=None)
    assert Budget().resolve(100) is None


def test_budget_is_kept() -> None:
    budget = Budget(share=0.5)
    assert Budget.parse(budget) is budget


def test_frozen_and_hashable() -> None:
    assert len({Budget(bytes=1), Budget.parse("1 B"), Budget(share=1.0)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Budget(bytes=1).bytes = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "True is no budget"),
        (False, "False is no budget"),
        (0, "not positive; None means no limit"),
        (-1, "-1 bytes is not positive"),
        (0.0, r"lies in \(0, 1\], not 0.0"),
        (-0.5, r"lies in \(0, 1\], not -0.5"),
        (float("nan"), r"lies in \(0, 1\], not nan"),
        (float("inf"), "not inf; None means no limit"),
        (float("-inf"), r"lies in \(0, 1\], not -inf$"),
        (1.5, 'give a unit for an amount, such as "1.5GiB"'),
        (6e9, "as bytes, give the integer 6000000000"),
        ("0", "not positive"),
        ("0 GiB", "not positive"),
        ("0.0", r"lies in \(0, 1\]"),
        ("0%", r"lies in \(0, 1\]"),
        ("150%", r"lies in \(0, 1\], not 1.5"),
        ("6.5", 'such as "6.5GiB"'),
        ("0.2 B", "less than one byte"),
        ("", "cannot read the budget ''"),
        ("GiB", "cannot read the budget 'GiB'"),
        ("-1 GB", "cannot read the budget '-1 GB'"),
        ("1,5 GB", "cannot read"),
        ("1.5.2 GB", "cannot read"),
        ("1. GB", "cannot read"),
        ("1 2 GB", "cannot read"),
        ("1__0 GB", "cannot read"),
        ("1e9", "cannot read"),
        ("nan", "cannot read"),
        ("inf", "cannot read"),
        ("None", "cannot read"),
        ("٣ GB", "cannot read"),
        ("9" * 5000, "cannot read"),
        ("9" * 400 + "%", "cannot read"),
        ("5 elephants", "unknown unit 'elephants'; known are B, kB, MB, GB, TB, KiB"),
        ("5 PB", "unknown unit 'PB'"),
        ("5 GB!", "unknown unit 'GB!'"),
        ("5 B%", "unknown unit 'B%'"),
        (b"5 GB", "cannot be a bytes"),
        ([1], "cannot be a list"),
        (1j, "cannot be a complex"),
        (object(), "cannot be a object"),
        ({"cuda:0": 1}, "Budget.parse_devices"),
    ],
)
def test_bad_value(value: Any, message: str) -> None:
    with pytest.raises(BudgetSyntaxError, match=message):
        Budget.parse(value)


@pytest.mark.parametrize(
    ("text", "why", "decimal", "binary"),
    [
        ("100m", "is ambiguous", '"100MB" (10^6 bytes a unit)', '"100MiB" (2^20)'),
        ("100M", "is ambiguous", '"100MB" (10^6 bytes a unit)', '"100MiB" (2^20)'),
        ("100Mb", "may be bits", '"100MB" (10^6 bytes a unit)', '"100MiB" (2^20)'),
        ("100 mB", "is ambiguous", '"100MB" (10^6 bytes a unit)', '"100MiB" (2^20)'),
        ("1.5 Gi", "is ambiguous", '"1.5GB" (10^9 bytes a unit)', '"1.5GiB" (2^30)'),
        ("1.5 Gib", "may be bits", '"1.5GB" (10^9 bytes a unit)', '"1.5GiB" (2^30)'),
        ("8 Gbit", "may be bits", '"8GB" (10^9 bytes a unit)', '"8GiB" (2^30)'),
        ("8 Gbits", "may be bits", '"8GB" (10^9 bytes a unit)', '"8GiB" (2^30)'),
        ("1k", "is ambiguous", '"1kB" (10^3 bytes a unit)', '"1KiB" (2^10)'),
        ("1Kb", "may be bits", '"1kB" (10^3 bytes a unit)', '"1KiB" (2^10)'),
        ("2T", "is ambiguous", '"2TB" (10^12 bytes a unit)', '"2TiB" (2^40)'),
    ],
)
def test_ambiguous_unit(text: str, why: str, decimal: str, binary: str) -> None:
    with pytest.raises(BudgetSyntaxError) as caught:
        Budget.parse(text)
    message = str(caught.value)
    assert why in message
    assert decimal in message
    assert binary in message


@pytest.mark.parametrize(
    "fields",
    [
        {"bytes": 1, "share": 0.5},
        {"bytes": 0},
        {"bytes": -1},
        {"bytes": 1.5},
        {"bytes": True},
        {"bytes": "6GiB"},
        {"share": 0},
        {"share": 1.01},
        {"share": True},
        {"share": "0.5"},
        {"share": float("nan")},
    ],
)
def test_bad_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(BudgetSyntaxError):
        Budget(**fields)


def test_devices() -> None:
    parsed = Budget.parse_devices({torch.device("cuda:1"): "6GiB", "cuda:0": 0.5, "cpu": None})
    assert parsed == {
        "cuda:1": Budget(bytes=6 * 2**30),
        "cuda:0": Budget(share=0.5),
        "cpu": Budget(),
    }
    assert list(parsed) == ["cuda:1", "cuda:0", "cpu"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "names no device"),
        ("6GiB", "a mapping such as"),
        (None, "a mapping such as"),
        ([("cuda:0", 1)], "a mapping such as"),
        ({0: "6GiB"}, 'name it, such as "cuda:0"'),
        ({" ": "6GiB"}, "empty name"),
        ({"cuda:0": "6GiB", torch.device("cuda:0"): "5GiB"}, "cuda:0 has two budgets"),
        ({"cpu": 1, "cuda:0": "6Gb"}, "budget of cuda:0: the unit 'Gb'"),
        ({"cuda:0": {"cuda:1": 1}}, "budget of cuda:0: one budget is expected"),
    ],
)
def test_bad_devices(value: Any, message: str) -> None:
    with pytest.raises(BudgetSyntaxError, match=message):
        Budget.parse_devices(value)


def test_resolve() -> None:
    assert Budget(bytes=70).resolve(100) == 70
    assert Budget(bytes=170).resolve(100) == 170
    assert Budget(share=0.3).resolve(10) == 3
    assert Budget(share=0.5).resolve(101) == 50
    assert Budget(share=1.0).resolve(10**18 + 1) == 10**18 + 1


@given(share=st.floats(0, 1, exclude_min=True), peak=sizes)
def test_resolve_stays_within_share(share: float, peak: int) -> None:
    limit = Budget(share=share).resolve(peak)
    assert limit is not None
    assert limit <= Fraction(repr(share)) * peak < limit + 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (61_131_981, "58.3 MiB"),
        (6 * 2**30, "6.0 GiB"),
        (2**40, "1.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
        (-1536, "-1.5 KiB"),
        (-(2**20) + 1, "-1.0 MiB"),
    ],
)
def test_format(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_str() -> None:
    assert str(Budget(bytes=1536)) == "1.5 KiB"
    assert str(Budget(share=0.125)) == "12.5% of the unoptimised peak"
    assert str(Budget()) == "no limit"


def read(text: str) -> int:
    limit = Budget.parse(text).bytes
    assert limit is not None
    return limit


@given(sizes)
def test_format_then_parse(count: int) -> None:
    text = format_bytes(count)
    tolerance = Fraction(UNITS[text.split()[1]], 20) + 1  # half of one decimal, and rounding down
    assert abs(read(text) - count) <= tolerance


@given(sizes, sizes)
def test_format_is_monotonic(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert read(format_bytes(low)) <= read(format_bytes(high))


@given(
    st.integers(1, 10**6),
    st.sampled_from(list(UNITS)),
    st.sampled_from([str, str.lower, str.upper]),
    st.sampled_from(["", " ", "\t"]),
)
def test_whole_units(number: int, unit: str, spell: Any, gap: str) -> None:
    assert read(f"{number}{gap}{spell(unit)}") == number * UNITS[unit]


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except BudgetSyntaxError as error:
        assert str(error)
    else:
        assert (budget.bytes is None) != (budget.share is None)
