"""One self-contained page about a plan, or about a comparison of plans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.measure import MeasuredStep
from fxmem.plan import Plan

from .charts import frontier_chart, links_chart, memory_chart, objects, pool_chart, progress_chart
from .engine import draw
from .fold import LEVELS, choose_level, fold, runs_of
from .graph import scene_of, source_of
from .memory import charged
from .tables import comparison_table, decisions_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from fxmem.comparison import Comparison


_MOST_INLINE = 4000  # runs; the picture of more takes seconds to open


@dataclass
class _Page:
    """What goes into a page, gathered section by section."""

    title: str
    subtitle: str
    sections: list[str] = field(default_factory=list)
    charts: dict[str, Figure] = field(default_factory=dict)
    names: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    level: str = ""

    def section(self, title: str, *content: str) -> None:
        self.sections.append(f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>")

    def chart(self, name: str, title: str, figure: Figure | None, note: str = "") -> None:
        """A section with one chart; where there is none, a note says why."""
        told = f'<p class="note">{escape(note)}</p>' if note else ""
        if figure is not None:
            self.charts[name] = figure
            low = " low" if name in ("progress", "links") else ""
            told += f'<div class="chart{low}" id="{name}" data-chart="{name}"></div>'
        self.section(title, told)

    def write(self, path: str | Path) -> None:
        charts = {name: json.loads(figure.to_json()) for name, figure in self.charts.items()}
        data = json.dumps({"charts": charts, "names": self.names, "level": self.level})
        from plotly.offline import get_plotlyjs

        page = Template(_text("page.html")).substitute(
            title=escape(self.title),
            subtitle=escape(self.subtitle),
            style=_text("page.css"),
            body="\n".join(self.sections),
            # Within a script element only this could end it early.
            data=data.replace("</", "<\\/"),
            plotly=get_plotlyjs().replace("</script", "<\\/script"),
            script=_text("page.js"),
        )
        Path(path).write_text(page, encoding="utf-8")


def _text(name: str) -> str:
    return resources.files("fxmem.visualize").joinpath(name).read_text(encoding="utf-8")


def write_report(plan: Plan, path: str | Path, measured: MeasuredStep | None = None) -> None:
    """Write one page that needs nothing else: no network, no other file.

    Parameters
    ----------
    plan : Plan
    path : str or Path
    measured : MeasuredStep, optional
        Drawn over the prediction.

    Raises
    ------
    FxmemError
        plotly is not installed.
    """
    objects()
    page = _Page(
        "Plan of one training step",
        f"{len(plan.timeline)} operator runs, graph {plan.graph_hash}, {plan.solver}, "
        f"seed {plan.seed}",
    )
    page.sections.append(_figures(plan, measured))
    page.chart("memory", "Memory over time", memory_chart(plan, measured))
    if plan.transfers:
        page.chart(
            "links", "Links beside compute", links_chart(plan),
            "What is moved to a slower tier and back, and what the step waits for.",
        )  # fmt: skip
    page.section("Graph", _graph(page, plan))
    page.section("Decisions", decisions_table(plan))
    page.chart(
        "pool", "Pool", pool_chart(plan),
        "" if plan.pool else "No arena: the plan has not run yet, or none fits its budget.",
    )  # fmt: skip
    progress = progress_chart(plan)
    page.chart(
        "progress", "Solver", progress,
        "" if progress else "No search was needed, or its progress is not known.",
    )  # fmt: skip
    page.section("In words", f"<details><summary>summary</summary><pre>{escape(plan.summary())}"
                 "</pre></details>")  # fmt: skip
    page.write(path)


def write_comparison(comparison: Comparison, path: str | Path) -> None:
    """Write one page with the frontier of several solvers: time against peak, and all rows.

    Parameters
    ----------
    comparison : Comparison
    path : str or Path

    Raises
    ------
    FxmemError
        plotly is not installed, or no solver found a plan.
    """
    rows = comparison.to_rows()
    solvers = dict.fromkeys(row["solver"] for row in rows if row["peak_bytes"] is not None)
    if not solvers:
        raise FxmemError("no solver found a plan, so there is nothing to draw.")
    objects()
    page = _Page("Plans compared", f"{len(rows)} plans by {', '.join(solvers)}")
    page.chart("frontier", "Time against peak", frontier_chart(comparison),
               "Down and to the left is better.")  # fmt: skip
    page.section("All plans", comparison_table(rows))
    page.write(path)


def _figures(plan: Plan, measured: MeasuredStep | None) -> str:
    budget = "none" if plan.budget_bytes is None else format_bytes(plan.budget_bytes)
    saved = 1 - plan.peak_bytes / max(1, plan.baseline_peak_bytes)
    rows = [
        ("budget", budget, ""),
        (
            "peak, predicted",
            format_bytes(plan.peak_bytes),
            f"{saved:.0%} less than everything kept",
        ),
        ("everything kept", format_bytes(plan.baseline_peak_bytes), ""),
        ("time of a step", f"{plan.seconds * 1e3:.1f} ms", f"{plan.overhead:+.1%}"),
        ("gap to the bound", f"{plan.gap:.2%}", f"{plan.status} by {plan.solver}"),
        ("recomputed", str(sum(m.recomputed for m in plan.timeline)), "runs"),
    ]
    if plan.transfers:
        wait = sum(t.stall for t in plan.transfers) * 1e3
        moved = sum(t.bytes for t in plan.transfers if t.direction == "out")
        rows.append(("moved", format_bytes(moved), f"{wait:.1f} ms waited for"))
    if measured is not None:
        held = format_bytes(measured.peak_bytes)
        more = f"{measured.seconds * 1e3:.1f} ms a step"
        if missing := charged(plan, measured):
            more += f"; {format_bytes(missing)} of state not there yet"
        rows.insert(2, ("peak, measured", held, more))
    return '<dl class="figures">' + "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in rows
    ) + "</dl>"  # fmt: skip


def _graph(page: _Page, plan: Plan) -> str:
    """Every level as a picture in the page, and which names each of its boxes answers to."""
    page.level = choose_level(plan, None)
    pictures, told = [], ""
    levels = [lv for lv in LEVELS if lv != "operators" or len(plan.timeline) <= _MOST_INLINE]
    if len(levels) < len(LEVELS):
        told = (
            f'<p class="note">More than {_MOST_INLINE} operator runs are too many for this page: '
            'draw them by <code>plan.render("plan.svg", level="operators")</code>.</p>'
        )
    for level in levels:
        scene = scene_of(plan, level)
        svg = draw(source_of(scene, f"{level}_"), "svg", "-Kneato", "-n2").decode()
        page.names[level] = _names(plan, level)
        pictures.append(_inline(svg, level))
    buttons = "".join(f'<button data-show="{level}">{level}</button>' for level in levels)
    return (
        f'{told}<div class="bar">{buttons}<button id="in" aria-label="closer">+</button>'
        '<button id="out" aria-label="further">−</button><button id="fit">fit</button>'
        '<input type="search" id="find" placeholder="find an operator or a module" '
        'aria-label="find an operator or a module"><button id="next">next</button>'
        f'<output id="found"></output></div><div id="graph">{"".join(pictures)}</div>'
    )


def _inline(svg: str, level: str) -> str:
    """An SVG file's picture without what belongs to files, and without ids that would clash."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(rf' id="(?!{level}_)[^"]*"', "", svg)
    svg = re.sub(r'<svg width="[^"]*" height="[^"]*"', f'<svg data-level="{level}"', svg)
    return re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)


def _names(plan: Plan, level: str) -> dict[str, list[str]]:
    """Box of a level's picture -> names that a search for it may give."""
    if level == "operators":
        return {
            f"{level}_run{run.number}": [run.operator.name, run.operator.module.replace("/", ".")]
            for run in runs_of(plan)
        }
    found = {}
    for number, part in enumerate(fold(plan, level)):
        boxes: Mapping[str, Iterable[str]] = {
            "forward": [run.operator.name for run in part.of("forward")],
            "backward": [run.operator.name for run in part.of("backward")],
            **part.values,
        }
        for kind, names in boxes.items():
            found[f"{level}_{kind}{number}"] = [part.title, *names]
    return found
