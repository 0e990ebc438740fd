"""The page of a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fxmem import Comparison, FxmemError, MeasuredStep, Plan
from fxmem.budget import Budget
from fxmem.comparison import ComparedPlan
from tests.visualize.browser import complaints, wait
from tests.visualize.pages import MIB, data_of

pytest.importorskip("plotly")


def compared(plan: Plan, measured: bool) -> Comparison:
    def row(solver: str, peak: int, seconds: float, found: bool = True) -> ComparedPlan:
        there = replace(plan, peak_bytes=peak * MIB, seconds=seconds, baseline_seconds=0.01)
        step = MeasuredStep((peak - 1) * MIB, 0, 2 * seconds, ())
        return ComparedPlan(
            solver, Budget.parse(peak * MIB), peak * MIB, there if found else None, 0.5,
            step if measured and found else None,
        )  # fmt: skip

    rows = (row("auto", 90, 0.01), row("auto", 70, 0.012), row("greedy", 90, 0.015),
            row("sqrt", 70, 1.0, found=False))  # fmt: skip
    eager = MeasuredStep(160 * MIB, 0, 0.02, ()) if measured else None
    return Comparison(rows, 160 * MIB, 0.01, eager)


@pytest.mark.parametrize("measured", [False, True])
def test_a_comparison_is_a_page_with_a_frontier(browser, plan, tmp_path, measured: bool):
    compared(plan, measured).report(tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    traces = {t["name"]: t for t in data_of(page)["charts"]["frontier"]["data"]}
    seen = {"auto, measured", "greedy, measured"} if measured else set()
    assert set(traces) == {"auto", "greedy", "as it is, predicted"} | seen
    assert traces["auto"]["x"] == [70.0, 90.0]
    assert traces["auto"]["y"] == pytest.approx([1.2, 1.0])
    if measured:
        assert traces["auto, measured"]["x"] == [69.0, 89.0]
        assert traces["auto, measured"]["y"] == pytest.approx([1.2, 1.0])
    assert ("peak, measured" in page) is measured
    browser.get((tmp_path / "all.html").as_uri())
    wait(browser, "document.querySelector('#frontier .main-svg') !== null")
    head = browser.find_element("css selector", "#plans th:nth-child(6) button")
    assert head.text == "overhead"
    head.click()
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#plans tbody tr')].map(r => r.cells[5].textContent)"
    )
    assert shown == ["+50.0%", "+20.0%", "+0.0%", ""]
    assert complaints(browser) == []


def test_a_comparison_that_found_nothing_is_refused(plan, tmp_path):
    nothing = compared(plan, False)
    nothing = replace(nothing, rows=nothing.rows[-1:])
    with pytest.raises(FxmemError, match="nothing to draw"):
        nothing.report(tmp_path / "all.html")
