"""The page: it holds what the plan holds, needs nothing else, and works in a real browser."""

from __future__ import annotations

import builtins
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fxmem import Comparison, FxmemError, Keep, MeasuredStep, Plan, Recompute
from fxmem.budget import Budget
from fxmem.comparison import ComparedPlan
from fxmem.picture import Improvement, Operator, StepPicture
from fxmem.plan import Moment
from fxmem.simulate import Lifetime
from fxmem.visualize import write_report
from tests.clock import within

from .browser import complaints, open_browser, requests

pytest.importorskip("plotly")
MIB = 2**20


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def read(path) -> tuple[str, list[tuple[str, dict]]]:
    reader = Reader()
    page = path.read_text()
    reader.feed(page)
    return page, reader.tags


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def large(layers: int = 100, each: int = 10) -> Plan:
    """A plan of two operators forward and backward for each of ``layers * each`` modules."""
    count = layers * each
    operators, moments, lives = [], [], []
    for i in range(count):
        name = f"mm_{i}"
        module = f"model/h.{i // each}/part_{i % each}"
        inputs = (i - 1,) if i else ()
        operators.append(Operator(name, "aten.mm.default", module, "forward", MIB, 1e-4, inputs))
        held = (MIB, 0, 0, i * MIB, 0, MIB, 0)
        moments.append(Moment(name, "forward", False, i * 1e-4, 1e-4, held))
    for i in range(count):
        twin = count - 1 - i
        name, module = f"back_{i}", operators[twin].module
        inputs = (count + i - 1, twin) if i else (twin,)
        operators.append(Operator(name, "aten.mm.default", module, "backward", MIB, 2e-4, inputs))
        start = count * 1e-4 + i * 2e-4
        held = (MIB, 0, 0, twin * MIB, 0, MIB, 0)
        moments.append(Moment(name, "backward", False, start, 2e-4, held))
        lives.append(Lifetime(f"mm_{twin}", MIB, "kept", twin, count + i))
    names = [f"mm_{i}" for i in range(count)]
    decisions = {n: Recompute() if i % 3 == 0 else Keep() for i, n in enumerate(names)}
    progress = (Improvement(0.1, 0.4, 0.2), Improvement(2.0, 0.3, 0.29))
    return Plan(
        budget_bytes=2 * count * MIB,
        peak_bytes=(count + 1) * MIB,
        resident_bytes=MIB,
        baseline_peak_bytes=2 * count * MIB,
        seconds=0.3,
        baseline_seconds=0.3,
        lower_bound_seconds=0.29,
        status="feasible",
        solver="auto",
        sequence=(*names, "turn", *(f"back_{i}" for i in range(count))),
        decisions=decisions,
        value_bytes={n: (i + 1) * 1024 for i, n in enumerate(names)},
        timeline=tuple(moments),
        graph_hash="0",
        picture=StepPicture(tuple(operators), tuple(lives), {"parameters": MIB}, progress),
    )


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def large_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    write_report(large(), path)
    return path


def wait(browser, script: str, seconds: float = 40.0):
    """What ``script`` gives once that is true."""
    until = time.monotonic() + seconds
    while not (found := browser.execute_script(f"return {script}")):
        assert time.monotonic() < until, f"never true: {script}"
        time.sleep(0.02)
    return found


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


def test_a_page_of_2000_operators_opens_soon_and_draws_everything(browser, large_page):
    def open_page() -> None:
        browser.get(large_page.as_uri())
        wait(browser, "document.documentElement.dataset.ready === 'yes'")
        wait(browser, "document.querySelector('#memory .main-svg') !== null")

    within(9.0, open_page)  # three seconds on a machine that does nothing else
    assert complaints(browser) == []
    assert requests(browser) == []
    for name in ("progress",):
        browser.execute_script(f"document.getElementById('{name}').scrollIntoView()")
        wait(browser, f"document.querySelector('#{name} .main-svg') !== null")
    assert browser.execute_script("return document.querySelectorAll('#graph svg').length") == 3
    assert complaints(browser) == []


def test_the_graph_is_searched_zoomed_and_changed_to_another_level(browser, large_page):
    browser.get(large_page.as_uri())
    wait(browser, "document.documentElement.dataset.ready === 'yes'")
    shown = "document.querySelector('#graph svg.shown')"
    assert browser.execute_script(f"return {shown}.dataset.level") == "layers"
    browser.find_element("css selector", "[data-show=operators]").click()
    assert browser.execute_script(f"return {shown}.dataset.level") == "operators"
    search = browser.find_element("id", "find")
    search.send_keys("mm_777")
    assert browser.find_element("id", "found").text == "1 found"
    hit = browser.execute_script("return document.querySelector('.box.hit').id")
    assert hit == "operators_run777"
    before = browser.execute_script(f"return {shown}.getAttribute('viewBox')")
    search.send_keys("\n")
    assert browser.find_element("id", "found").text == "1 of 1"
    box, frame = browser.execute_script(
        "const a = document.querySelector('.box.hit').getBoundingClientRect(),"
        "b = document.getElementById('graph').getBoundingClientRect();"
        "return [[a.left, a.right, a.top, a.bottom], [b.left, b.right, b.top, b.bottom]]"
    )
    # What was found stands in the middle of the frame.
    assert sum(box[:2]) / 2 == pytest.approx(sum(frame[:2]) / 2, abs=3)
    assert sum(box[2:]) / 2 == pytest.approx(sum(frame[2:]) / 2, abs=3)
    after = browser.execute_script(f"return {shown}.getAttribute('viewBox')")
    assert after != before
    browser.find_element("id", "in").click()
    width = [float(v.split()[2]) for v in (after, browser.execute_script(
        f"return {shown}.getAttribute('viewBox')"))]  # fmt: skip
    assert width[1] == pytest.approx(0.7 * width[0])
    assert complaints(browser) == []


def column(browser, number: int) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('#decisions tbody tr')].filter(r => !r.hidden)"
        f".map(r => r.cells[{number}].dataset.key ?? r.cells[{number}].textContent)"
    )


def test_decisions_sort_by_bytes_and_seconds_and_are_searched(browser, large_page):
    browser.get(large_page.as_uri())
    wait(browser, "document.documentElement.dataset.ready === 'yes'")
    heads = browser.find_elements("css selector", "#decisions th button")
    assert [h.text for h in heads][4:6] == ["bytes", "one run"]
    browser.execute_script("arguments[0].click()", heads[4])
    keys = [int(k) for k in column(browser, 4)]
    assert keys == sorted(keys, reverse=True) and len(keys) == 1000
    browser.execute_script("arguments[0].click()", heads[4])
    assert [int(k) for k in column(browser, 4)] == keys[::-1]
    browser.execute_script("arguments[0].click()", heads[3])
    again = [int(k) for k in column(browser, 3)]
    assert again == sorted(again, reverse=True) and len(set(again)) == 2
    browser.execute_script("arguments[0].click()", heads[6])
    spent = [int(k) for k in column(browser, 6)]
    assert spent == sorted(spent, reverse=True)
    browser.find_element("id", "search").send_keys("h.42.part_7")
    assert column(browser, 0) == ["mm_427"]
    name = browser.find_element("css selector", "#decisions tbody tr:not([hidden]) .find")
    browser.execute_script("arguments[0].click()", name)
    assert browser.execute_script("return document.querySelector('.box.hit') !== null")
    assert complaints(browser) == []


@pytest.mark.parametrize("width", [1000])
def test_tables_are_as_wide_as_the_page(browser, tmp_path, width: int) -> None:
    plan = large(2)
    long = [replace(o, module=f"{o.module}/{'nonlinearity.' * 8}") for o in plan.picture.operators]
    page = tmp_path / "plan.html"
    write_report(replace(plan, picture=replace(plan.picture, operators=tuple(long))), page)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        browser.get(page.as_uri())
        rows = "document.querySelector('.rows')"
        wait(browser, f"{rows} !== null")
        wide, room = browser.execute_script(f"return [{rows}.scrollWidth, {rows}.clientWidth]")
        assert 0 < wide <= room < width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def hover(browser, plot: str, label: str, seconds: float = 40.0) -> str:
    """What a label says while the pointer moves over a plot; one may come too early."""
    from selenium.webdriver import ActionChains

    over = browser.find_element("css selector", plot)
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        step += 1
        ActionChains(browser).move_to_element_with_offset(over, step % 40, 0).perform()
        time.sleep(0.1)
        said = browser.execute_script(f"return document.querySelector('{label}').textContent")
        if said:
            return said
    raise AssertionError(f"nothing is said at {plot}")


def test_hover_names_the_operator(browser, traced, tmp_path):
    write_report(traced, tmp_path / "plan.html")
    browser.get((tmp_path / "plan.html").as_uri())
    wait(browser, "document.querySelector('#memory .main-svg') !== null")
    shown = hover(browser, "#memory .nsewdrag", "#memory .hoverlayer")
    assert any(moment.name in shown for moment in traced.timeline)
    assert "MiB" in shown and "parameters" in shown
    assert complaints(browser) == []


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
