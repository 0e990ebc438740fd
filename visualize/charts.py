"""Charts of a page that answer to the pointer, by plotly; each is a figure in plotly's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.measure import MeasuredStep
from fxmem.plan import Plan

from .areas import areas_of
from .canvas import INK, unit_of
from .frontier import COLOURS
from .links import WORK, lanes
from .memory import charged
from .pool import KINDS as POOL_KINDS
from .pool import kind_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from fxmem.comparison import Comparison

# Solvers are told apart by the sign too.
_SIGNS = ("circle", "square", "diamond", "triangle-down", "triangle-up", "pentagon", "star", "x",
          "triangle-left", "triangle-right", "cross", "hexagon")  # fmt: skip
_SIGHT = 1e-3  # of the peak; less cannot be seen


def objects() -> Any:
    """plotly's figures.

    Raises
    ------
    FxmemError
        plotly is not installed.
    """
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise FxmemError(
            "pages need plotly, which is not installed: pip install 'fxmem[report]'"
        ) from error
    return plotly.graph_objects


def _figure(x: str, y: str, **layout: Any) -> Figure:
    look = {
        "template": "plotly_white",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "margin": {"l": 64, "r": 16, "t": 28, "b": 48},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
        "legend": {"traceorder": "reversed"},
    }
    return objects().Figure(layout={**look, **layout})


def memory_chart(plan: Plan, measured: MeasuredStep | None = None) -> Figure:
    """Bytes held over the predicted time of the step, by what they are held for."""
    size, unit = unit_of(plan.peak_bytes)
    figure = _figure("predicted time since the step began (ms)", f"memory held ({unit})",
                     hovermode="x unified")  # fmt: skip
    operators = {o.name: o for o in plan.picture.operators} if plan.picture else {}
    x = [moment.start * 1e3 for moment in plan.timeline]
    end = [(m.start + m.seconds) * 1e3 for m in plan.timeline[-1:]]
    names = []
    for m in plan.timeline:
        module = operators[m.name].module.replace("/", ".") if m.name in operators else ""
        again = ", computed again" if m.recomputed else ""
        names.append(f"<b>{m.name}</b> {m.phase}{again}<br>{module}")
    for area in areas_of(plan):
        if max(area.held, default=0) <= _SIGHT * plan.peak_bytes:
            continue
        held = [h / size for h in (*area.held, *area.held[-1:])]
        figure.add_scatter(
            x=x + end, y=held, name=area.label.replace("\n", " "), mode="lines", stackgroup="held",
            line={"width": 0, "shape": "hv", "color": area.colour}, fillcolor=area.colour,
            hovertemplate=f"%{{y:.2f}} {unit}",
        )  # fmt: skip
    total = [m.live_bytes / size for m in plan.timeline]
    figure.add_scatter(
        x=x, y=total, name="all", mode="lines", line={"width": 0, "shape": "hv", "color": INK},
        text=names, hovertemplate=f"%{{y:.2f}} {unit}<br>%{{text}}", showlegend=False,
    )  # fmt: skip
    if plan.budget_bytes is not None:
        text = f"budget {format_bytes(plan.budget_bytes)}"
        figure.add_hline(plan.budget_bytes / size, line={"dash": "dash", "color": "black"},
                         annotation={"text": text, "xanchor": "left"},
                         annotation_position="top left")  # fmt: skip
    peak = plan.peak_moment()
    if peak is not None:
        figure.add_annotation(
            x=(peak.start + peak.seconds / 2) * 1e3, y=peak.live_bytes / size, ay=-34, ax=0,
            text=f"peak {format_bytes(peak.live_bytes)} at {peak.name}",
            bgcolor="rgba(255,255,255,.85)",
        )  # fmt: skip
    turn = next((m.start * 1e3 for m in plan.timeline if m.phase == "backward"), None)
    if turn is not None:
        figure.add_vline(turn, line={"dash": "dot", "color": "#666666"})
    if measured is not None:
        _add_measured(figure, plan, measured, (end or [0.0])[0])
    return figure


def _add_measured(figure: Figure, plan: Plan, measured: MeasuredStep, end: float) -> None:
    """The measured curve over the prediction; where there is no curve, its peak."""
    size, unit = unit_of(plan.peak_bytes)
    more = charged(plan, measured)
    if len(measured.timeline) < 2:
        figure.add_hline(
            (measured.peak_bytes + more) / size,
            line={"width": 1.5, "color": "black"},
            annotation={"text": f"measured peak {format_bytes(measured.peak_bytes)}"},
        )
        return
    scale = end / measured.timeline[-1][0]
    figure.add_scatter(
        x=[seconds * scale for seconds, _ in measured.timeline],
        y=[(held + more) / size for _, held in measured.timeline],
        name="measured, time stretched to fit",
        mode="lines",
        line={"width": 1.5, "shape": "hv", "color": "black"},
        hovertemplate=f"%{{y:.2f}} {unit}",
    )


def links_chart(plan: Plan) -> Figure | None:
    """What compute and each link work on over time; None where nothing is moved."""
    rows = lanes(plan)
    if not rows:
        return None
    figure = _figure("predicted time since the step began (ms)", "", barmode="overlay",
                     bargap=0.25, hovermode="closest",
                     legend={"orientation": "h", "y": 1.2, "traceorder": "normal"})  # fmt: skip
    figure.update_yaxes(categoryorder="array", categoryarray=list(rows)[::-1], title=None)
    for kind, (words, colour) in WORK.items():
        some = [(lane, s) for lane, work in rows.items() for s in work if s.kind == kind]
        if not some:
            continue
        figure.add_bar(
            orientation="h",
            y=[lane for lane, _ in some],
            base=[s.start * 1e3 for _, s in some],
            x=[(s.end - s.start) * 1e3 for _, s in some],
            name=words,
            # A short transfer on a long step is still a line.
            marker={"color": colour, "line": {"width": 1, "color": colour},
                    "pattern": {"shape": "/" if kind == "again" else ""}},
            text=[s.tip for _, s in some],
            textposition="none",
            hovertemplate=f"<b>{words}</b>: %{{text}}<br>from %{{base:.2f}} ms<extra></extra>",
        )  # fmt: skip
    return figure


def pool_chart(plan: Plan) -> Figure | None:
    """Every block of the arena as a rectangle: allocator events by bytes; None without one."""
    if plan.pool is None:
        return None
    size, unit = unit_of(plan.pool.arena_bytes)
    figure = _figure("allocations and frees of one step, in order", f"offset in the arena ({unit})",
                     barmode="overlay", bargap=0, hovermode="closest")  # fmt: skip
    end = max(r.end for r in plan.pool.requests)
    turn = min((r.start for r in plan.pool.requests if r.phase == "backward"), default=end)
    placed = [r for r in plan.pool.requests if r.offset is not None]
    for label, (colour, _hatch) in POOL_KINDS.items():
        some = [r for r in placed if kind_of(r, turn, end) == label]
        figure.add_bar(
            x=[(r.start + r.end) / 2 for r in some],
            width=[r.end - r.start for r in some],
            base=[(r.offset or 0) / size for r in some],
            y=[r.bytes / size for r in some],
            name=label,
            marker={"color": colour, "line": {"width": 0.4, "color": "white"}},
            text=[f"<b>{r.operator}</b> {r.phase}<br>{format_bytes(r.bytes)}" for r in some],
            textposition="none",
            hovertemplate="%{text}<br>from %{base:.2f} " + unit + "<extra></extra>",
        )
    return figure


def progress_chart(plan: Plan) -> Figure | None:
    """Best step time so far and its bound, over the solver's seconds; None if not known."""
    progress = plan.picture.progress if plan.picture else ()
    if not progress:
        return None
    figure = _figure("seconds of the search", "time of a step (ms)", hovermode="x unified",
                     legend={"orientation": "h", "y": 1.12})  # fmt: skip
    figure.update_yaxes(rangemode="normal")
    rows = (
        ("best plan so far", "#D55E00", [p.seconds * 1e3 for p in progress], "solid"),
        ("lower bound", "#0072B2", [p.bound_seconds * 1e3 for p in progress], "dash"),
    )
    for name, colour, y, dash in rows:
        figure.add_scatter(
            x=[p.after for p in progress], y=y, name=name, mode="lines+markers",
            line={"shape": "hv", "color": colour, "dash": dash}, hovertemplate="%{y:.3f} ms",
        )  # fmt: skip
    return figure


def frontier_chart(comparison: Comparison) -> Figure:
    """Time against peak, a line for each solver; what was measured stands hollow."""
    rows = [row for row in comparison.rows if row.plan is not None]
    eager = comparison.eager
    size, unit = unit_of(max(comparison.baseline_peak_bytes, eager.peak_bytes if eager else 0))
    figure = _figure(f"peak of the step ({unit})", "time, as a multiple of the step as it is",
                     hovermode="closest", legend={"traceorder": "normal"})  # fmt: skip
    figure.update_yaxes(rangemode="normal")
    for number, solver in enumerate(dict.fromkeys(row.solver for row in rows)):
        some = [row for row in rows if row.solver == solver]
        colour, sign = COLOURS[number % len(COLOURS)], _SIGNS[number % len(_SIGNS)]
        predicted = [(r.plan.peak_bytes, 1 + r.plan.overhead, r.asked) for r in some if r.plan]
        measured = [
            (r.measured.peak_bytes, r.measured.seconds / eager.seconds, r.asked)
            for r in some
            if r.measured and eager
        ]
        drawn = [(solver, predicted, "lines+markers", sign)]
        if measured:
            drawn.append((f"{solver}, measured", measured, "markers", f"{sign}-open"))
        for name, points, mode, symbol in drawn:
            points.sort()
            figure.add_scatter(
                x=[peak / size for peak, _, _ in points], y=[time for _, time, _ in points],
                text=[f"budget {asked}" for _, _, asked in points],
                name=name, legendgroup=solver, mode=mode,
                marker={"color": colour, "symbol": symbol, "size": 9},
                line={"width": 1.2, "color": colour},
                hovertemplate=f"{name}, %{{text}}<br>%{{x:.2f}} {unit}, %{{y:.3f}}<extra></extra>",
            )  # fmt: skip
    figure.add_scatter(
        x=[comparison.baseline_peak_bytes / size], y=[1.0], name="as it is, predicted",
        mode="markers", marker={"color": INK, "symbol": "cross-thin-open", "size": 12},
    )  # fmt: skip
    return figure
