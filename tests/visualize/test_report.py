"""The page: it holds what the plan holds, and needs nothing else."""

from __future__ import annotations

import builtins
import re
from dataclasses import replace

import pytest

from fxmem import FxmemError, Keep, MeasuredStep
from tests.visualize.pages import MIB, data_of, read

pytest.importorskip("plotly")


def test_the_page_is_self_contained(traced, tmp_path):
    odd = replace(
        traced,
        decisions={**traced.decisions, "<odd&name>": Keep()},
        value_bytes={**traced.value_bytes, "<odd&name>": 7},
    )
    odd.report(tmp_path / "plan.html")
    page, tags = read(tmp_path / "plan.html")
    names = [tag for tag, _ in tags]
    assert names.count("svg") == 3 and names.count("table") == 1
    assert names.count("tr") == 1 + len(odd.decisions)
    loads = [a for tag, attrs in tags for k, a in attrs.items()
             if k in ("src", "href", "xlink:href") and tag != "a"]  # fmt: skip
    assert loads == ["data:,"]
    assert "default-src 'none'" in page
    assert "&lt;odd&amp;name&gt;" in page and "<odd&name>" not in page


def test_the_charts_hold_the_plan(traced, tmp_path):
    step = MeasuredStep(traced.peak_bytes, traced.resident_bytes, 1.0, ((0.0, 10), (1.0, 20)))
    traced.report(tmp_path / "plan.html", step)
    data = data_of((tmp_path / "plan.html").read_text())
    assert set(data["charts"]) == {"memory", "pool", "progress"} - (
        set() if traced.pool else {"pool"}
    )
    names = {trace["name"] for trace in data["charts"]["memory"]["data"]}
    assert {"parameters", "kept for backward", "measured, time stretched to fit"} <= names
    assert set(data["names"]) == {"layers", "modules", "operators"}
    runs = data["names"]["operators"]
    assert len(runs) == len(traced.timeline)
    assert runs["operators_run0"][0] == traced.timeline[0].name


def test_a_measured_step_without_a_curve_is_a_line(traced, tmp_path):
    traced.report(tmp_path / "plan.html", MeasuredStep(2 * MIB, traced.resident_bytes, 1.0, ()))
    layout = data_of((tmp_path / "plan.html").read_text())["charts"]["memory"]["layout"]
    assert "measured peak 2.0 MiB" in {a["text"] for a in layout["annotations"]}


def test_too_many_operators_are_left_out_and_it_is_told(traced, tmp_path, monkeypatch):
    monkeypatch.setattr("fxmem.visualize.page._MOST_INLINE", 5)
    traced.report(tmp_path / "plan.html")
    page, tags = read(tmp_path / "plan.html")
    assert [tag for tag, _ in tags].count("svg") == 2
    assert "More than 5 operator runs are too many" in page


def test_rows_come_largest_first_with_times(traced, tmp_path):
    traced.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    keys = [int(k) for k in re.findall(r'data-key="(\d+)">[\d.]+ [KM]?i?B', page)]
    assert keys == sorted(traced.value_bytes.values(), reverse=True)


def test_what_is_missing_is_told(plan, tmp_path):
    plan.report(tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "No arena: the plan has not run yet" in page
    assert "No search was needed" in page
    assert "budget      100.0 MiB" in page


def test_an_empty_step_is_a_page(plan, tmp_path):
    empty = replace(plan, timeline=(), decisions={}, value_bytes={})
    empty.report(tmp_path / "plan.html")
    assert "0 operator runs" in (tmp_path / "plan.html").read_text()


def test_missing_plotly_names_the_extra(plan, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "plotly":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FxmemError, match=r"pip install 'fxmem\[report\]'"):
        plan.report(tmp_path / "plan.html")
    assert list(tmp_path.iterdir()) == []
