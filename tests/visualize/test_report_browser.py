"""The page in a real browser: it opens soon, and everything on it works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fxmem.visualize import write_report
from tests.clock import within
from tests.visualize.browser import complaints, hover, requests, wait
from tests.visualize.pages import large

pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def large_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    write_report(large(), path)
    return path


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


def test_hover_names_the_operator(browser, traced, tmp_path):
    write_report(traced, tmp_path / "plan.html")
    browser.get((tmp_path / "plan.html").as_uri())
    wait(browser, "document.querySelector('#memory .main-svg') !== null")
    shown = hover(browser, "#memory .nsewdrag", "#memory .hoverlayer")
    assert any(moment.name in shown for moment in traced.timeline)
    assert "MiB" in shown and "parameters" in shown
    assert complaints(browser) == []
