"""Timed against what users have; medians, interleaved, ratios within one run."""

from __future__ import annotations

import time

import pytest

import fxmem
from fxmem import planning

from .against import compare
from .models import build

pytestmark = pytest.mark.benchmark


def _ratio(rows: list[str], peer: str) -> float:
    row = next(r for r in rows if r.startswith(f"| {peer} "))
    return float(row.split("|")[-2])


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_beats_checkpointing_at_its_peak(name):
    rows = compare(name, rounds=15, chosen=["checkpoint"], time_limit=10.0)
    print("\n".join(rows))
    assert _ratio(rows, "checkpoint") <= 0.93
    free = next(r for r in rows if "no budget" in r)
    assert float(free.split("|")[3]) <= 1.02  # no slower, within what repeats


@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_no_slower_than_torch_at_any_peak_it_reaches(name):
    shares = ["1.0", "0.8", "0.6", "0.4", "0.2", "0.1", "0.0"]
    rows = compare(name, rounds=7, chosen=shares, time_limit=10.0)
    print("\n".join(rows))
    for share in shares:
        assert _ratio(rows, f"torch {share}") <= 1.02


def test_planning_time(monkeypatch):
    module, inputs = build("gpt2")
    fxmem.optimize(module, 0.5, inputs)  # costs are measured and kept
    seconds = {}
    original = planning.plan_step

    def timed(*args, **kwargs):
        start = time.perf_counter()
        step = original(*args, **kwargs)
        seconds["plan"] = time.perf_counter() - start
        return step

    monkeypatch.setattr("fxmem.margin.plan_step", timed)
    for share in (0.5, 0.3, 0.26):
        fitted = fxmem.optimize(module, share, inputs)
        print(f"{share}: planned in {seconds['plan']:.1f} s, gap {fitted.plan.gap:.2%}")
        assert seconds["plan"] <= 10.0
