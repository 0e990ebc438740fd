"""The page: it holds what the plan holds, and needs nothing else."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fxmem import Keep
from fxmem.visualize import write_report


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_the_page_is_self_contained(plan, tmp_path):
    pytest.importorskip("matplotlib")
    odd = replace(
        plan,
        decisions={**plan.decisions, "<odd&name>": Keep()},
        value_bytes={**plan.value_bytes, "<odd&name>": 7},
    )
    write_report(odd, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    reader = Reader()
    reader.feed(page)
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("svg") == tags.count("table") == 1
    assert tags.count("tr") == 1 + len(odd.decisions)
    assert not [a for _, attrs in reader.tags for a in attrs if a in ("src", "href")]
    assert "&lt;odd&amp;name&gt;" in page and "<odd&name>" not in page
    assert "budget      100.0 MiB" in page
    # Rows come largest first.
    assert page.index("<td>addmm") < page.index("<td>gelu") < page.index("<td>&lt;odd")
