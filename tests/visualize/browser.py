"""A headless browser for tests: Debian's, or any that is named; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
    "--disable-backgrounding-occluded-windows",  # two tests, two windows
    "--disable-renderer-backgrounding",
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium under selenium; where there is none, the test is skipped and says so."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    names = (os.environ.get("CHROMIUM", "chromium"), "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(
            "no browser: the page's own behaviour is not tested here. On Debian: "
            "apt-get install chromium chromium-driver"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def complaints(browser: Any) -> list[str]:
    """What the page wrote to the console as a warning or an error."""
    rows = browser.get_log("browser")
    return [row["message"] for row in rows if row["level"] in ("SEVERE", "WARNING")]


def requests(browser: Any) -> list[str]:
    """Addresses that the page asked for, other than itself and data within it."""
    import json

    found = []
    for row in browser.get_log("performance"):
        message = json.loads(row["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return [url for url in found if not url.startswith(("file:", "data:", "blob:"))]


def wait(browser: Any, script: str, seconds: float = 40.0) -> Any:
    """What ``script`` gives once that is true."""
    until = time.monotonic() + seconds
    while not (found := browser.execute_script(f"return {script}")):
        assert time.monotonic() < until, f"never true: {script}"
        time.sleep(0.02)
    return found


def hover(browser: Any, plot: str, label: str, seconds: float = 40.0) -> str:
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
