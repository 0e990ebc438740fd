"""The drawn graph and the page: they hold what the plan holds, and need nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import graphviz
import pytest

from fxmem import FxmemError, Keep
from fxmem.visualize import write_report
from fxmem.visualize.graph import KINDS, blocks_of, graph_of


def test_runs_are_grouped_by_what_becomes_of_them(plan):
    assert [b.kind for b in blocks_of(plan, "forward")] == ["other", "kept", "dropped"]
    assert [b.kind for b in blocks_of(plan, "backward")] == ["again", "other"]
    assert "30.0 MiB" in blocks_of(plan, "forward")[1].label(plan)


def test_kinds_differ_in_shape_and_in_colour():
    for column in (1, 2):
        assert len({row[column] for row in KINDS.values()}) == len(KINDS)


def test_a_recomputation_hangs_on_its_first_run(plan):
    source = graph_of(plan).source
    assert re.search(r"forward2 -> backward0 \[.*style=dashed", source)
    assert "backward1 -> backward0 [dir=back]" in source
    assert "cluster_legend" in source


def test_the_source_is_written_without_the_program(plan, tmp_path):
    plan.render(tmp_path / "plan.dot")
    assert (tmp_path / "plan.dot").read_text().startswith("digraph step")


def test_a_missing_program_is_told_and_the_source_left(plan, tmp_path, monkeypatch):
    def missing(*_args, **_kwargs):
        raise graphviz.ExecutableNotFound(["dot"])

    monkeypatch.setattr(graphviz.Digraph, "pipe", missing)
    with pytest.raises(FxmemError, match="Install graphviz, then: dot -Tsvg"):
        plan.render(tmp_path / "plan.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.dot"]


def test_a_format_that_graphviz_lacks_is_refused(plan, tmp_path):
    with pytest.raises(FxmemError, match="graphviz writes no"):
        plan.render(tmp_path / "plan.docx")


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
