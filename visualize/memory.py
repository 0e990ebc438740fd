"""Memory over time: what a plan predicts, and what steps really took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.measure import MeasuredStep
from fxmem.plan import Moment, Plan

from .areas import COLOURS, Area, areas_of, live_at
from .canvas import FAINT, INK, canvas, canvas_over_strip, draw_budget, label_point, save, unit_of
from .links import draw_links, lanes
from .pool import plot_pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("memory", "pool")

_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "-", "--", "-.", ":")
_SIGHT = 1e-3  # of the peak; less cannot be seen
_NAMED = 5  # values at the peak
_HEADROOM = 1.22  # of the highest value; labels of peaks stand in it


def plot_plan(
    plan: Plan, path: str | Path, kind: str = "memory", measured: MeasuredStep | None = None
) -> None:
    """Draw the predicted memory of a plan over the time of one step, or its arena.

    Areas are stacked by what bytes are held for; the legend gives each one's bytes at the peak,
    and the largest values that live there. Where values are moved, the links to slower tiers
    stand below, beside compute.

    Parameters
    ----------
    plan : Plan
    path : str or Path
        Ends in ``.svg``, ``.png`` or ``.pdf``.
    kind : {"memory", "pool"}
    measured : MeasuredStep, optional
        Drawn over the prediction, its time stretched to the predicted one.

    Raises
    ------
    FxmemError
        matplotlib is not installed, the kind or the suffix is not known, or there is no arena.
    """
    if kind == "pool":
        plot_pool(plan, path)
        return
    if kind not in KINDS:
        raise FxmemError(f"kind={kind!r} is not known; give {' or '.join(map(repr, KINDS))}.")
    save(path, lambda: draw_plan(plan, measured))


def plot_steps(
    steps: Mapping[str, MeasuredStep], path: str | Path, budget: int | None = None
) -> None:
    """Draw the measured memory of several steps over time, in one picture.

    Parameters
    ----------
    steps : mapping
        Name to show -> measured step. One without a timeline (CUDA) is drawn as its peak.
    path : str or Path
        Ends in ``.svg``, ``.png`` or ``.pdf``.
    budget : int, optional
        Bytes, drawn as a line.

    Raises
    ------
    FxmemError
        matplotlib is not installed, the suffix is not known, or there is no step.
    """
    if not steps:
        raise FxmemError("there is no step to draw; give at least one, by name.")
    save(path, lambda: draw_steps(steps, budget))


def draw_plan(plan: Plan, measured: MeasuredStep | None = None) -> Figure:
    """The figure that `plot_plan` saves."""
    moments = plan.timeline
    edges, timed = _edges(moments)
    links = lanes(plan) if timed else {}
    if links:
        figure, axes, lowest = canvas_over_strip(0.5 + 0.32 * len(links))
        draw_links(lowest, links)
    else:
        figure, axes = canvas()
        lowest = axes
    highest = max(plan.peak_bytes, 1)
    if measured is not None:
        highest = max(highest, measured.peak_bytes + charged(plan, measured))
    size, unit = unit_of(highest)
    # What would be thinner than a line needs no row of the legend.
    areas = [a for a in areas_of(plan) if max(a.held, default=0) > _SIGHT * highest]
    if moments:
        axes.stackplot(
            edges,
            # The last moment lasts until the step ends.
            [[held / size for held in (*area.held, area.held[-1])] for area in areas],
            step="post",
            colors=[area.colour for area in areas],
            linewidth=0,
        )
    peak = plan.peak_moment()
    top = plan.peak_bytes / size
    above = draw_budget(axes, plan.budget_bytes, plan.peak_bytes, size)
    axes.set_ylim(0, max(highest / size, above, 1e-9) * _HEADROOM)
    axes.set_xlim(0, edges[-1] or 1)
    if measured is not None:
        _draw_measured(axes, measured, charged(plan, measured), edges[-1], size)
    if peak is not None:
        at = moments.index(peak)
        middle = (edges[at] + edges[at + 1]) / 2
        text = f"peak {format_bytes(peak.live_bytes)} at {peak.name} ({peak.phase})"
        _name_peak(axes, text, (middle, top), above)
    _mark_turn(axes, moments, edges)
    lowest.set_xlabel("predicted time since the step began (ms)" if timed else "operators run")
    axes.set_ylabel(f"memory held ({unit})")
    axes.set_title(_plan_title(plan), loc="left", pad=24, color=INK)
    _legends(axes, plan, areas, measured)
    return figure


def draw_steps(steps: Mapping[str, MeasuredStep], budget: int | None = None) -> Figure:
    """The figure that `plot_steps` saves."""
    figure, axes = canvas()
    highest = max(step.peak_bytes for step in steps.values())
    size, unit = unit_of(highest)
    longest = max((s.timeline[-1][0] for s in steps.values() if s.timeline), default=0) * 1e3
    axes.set_xlim(0, longest or 1)
    above = draw_budget(axes, budget, highest, size, outside=True)
    axes.set_ylim(0, max(highest / size, above, 1e-9) * _HEADROOM)
    peaks: list[tuple[float, float, str, str]] = []
    # Highest first, so that lower ones lie in front.
    order = sorted(enumerate(steps.items()), key=lambda row: -row[1][1].peak_bytes)
    for number, (name, step) in order:
        colour = _LINES[number % len(_LINES)]
        look: dict[str, Any] = {"color": colour, "linestyle": _DASHES[number % len(_DASHES)]}
        text = f"{name}: peak {format_bytes(step.peak_bytes)}"
        peak = step.peak_bytes / size
        if len(step.timeline) < 2:
            axes.axhline(peak, linewidth=1.5, **look)
            peaks.append((longest / 2 or 0.5, peak, text, colour))
            continue
        x = [seconds * 1e3 for seconds, _ in step.timeline]
        y = [held / size for _, held in step.timeline]
        axes.fill_between(x, y, step="post", color=colour, alpha=0.22, linewidth=0)
        axes.plot(x, y, drawstyle="steps-post", linewidth=1.3, **look)
        at = max(range(len(y)), key=y.__getitem__)
        peaks.append((x[at], peak, text, colour))
    _draw_residents(axes, list(steps.values()), size)
    _name_peaks(axes, peaks, above)
    axes.set_xlabel("time since the step began (ms), allocator recorded")
    axes.set_ylabel(f"memory held ({unit})")
    axes.set_title("Measured memory of one training step", loc="left", pad=10, color=INK)
    return figure


def _edges(moments: Sequence[Moment]) -> tuple[list[float], bool]:
    """Where each moment starts, and the end; in ms, or counted where nothing takes time."""
    if not moments:
        return [0.0, 1.0], False
    end = moments[-1].start + moments[-1].seconds
    if end <= 0:
        return [float(i) for i in range(len(moments) + 1)], False
    return [*(m.start * 1e3 for m in moments), end * 1e3], True


def _name_peak(axes: Axes, text: str, point: tuple[float, float], above: float) -> None:
    """Name the one peak, above the budget's line and its label."""
    x, y = point
    axes.plot([x], [y], "o", color=INK, markersize=5, zorder=5)
    label_point(axes, text, (x, y), max(y, above), raised=26, color=INK)


def _name_peaks(axes: Axes, peaks: Sequence[tuple[float, float, str, str]], above: float) -> None:
    """Name several peaks, lowest first, each clear of the budget's line and of those before."""
    left, right = axes.get_xlim()
    height = axes.get_ylim()[1]
    line, width = 0.075 * height, 0.42 * (right - left)
    placed: list[tuple[float, float]] = []
    for x, y, text, colour in sorted(peaks, key=lambda row: row[1]):
        near_budget = 0 <= above - y < 1.2 * line
        at = above if near_budget else y
        while any(abs(at - b) < line and abs(x - a) < width for a, b in placed):
            at += line
        placed.append((x, at))
        axes.plot([x], [y], "o", color=colour, markersize=6, zorder=7, markeredgecolor="white")
        label_point(axes, text, (x, y), at, raised=10, color=colour, weight="bold")
    highest = max(at for _, at in placed)
    axes.set_ylim(0, max(height, highest + 2 * line))


def _draw_residents(axes: Axes, steps: Sequence[MeasuredStep], size: int) -> None:
    """What is held when the step starts, where all steps hold the same."""
    resident = {step.resident_bytes for step in steps}
    if len(resident) != 1 or not (height := resident.pop() / size):
        return
    axes.axhspan(0, height, color="#D4D4D4", linewidth=0, zorder=3)
    held = format_bytes(steps[0].resident_bytes)
    axes.annotate(
        f"held all along: parameters, optimizer state, inputs ({held})",
        (0, height / 2),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        zorder=6,
    )


def _mark_turn(axes: Axes, moments: Sequence[Moment], edges: Sequence[float]) -> None:
    """A line where forward turns to backward, and the two words over it."""
    turn = next((i for i, m in enumerate(moments) if m.phase == "backward"), None)
    if turn is None:
        return
    axes.axvline(edges[turn], color=FAINT, linestyle=":", linewidth=1.4, zorder=4)
    for text, side, shift in (("◂ forward", "right", -4), ("backward ▸", "left", 4)):
        axes.annotate(
            text,
            (edges[turn], 1),
            xycoords=("data", "axes fraction"),
            xytext=(shift, 4),
            textcoords="offset points",
            ha=side,
            color=FAINT,
        )


def _plan_title(plan: Plan) -> str:
    title = f"Predicted memory of one training step: peak {format_bytes(plan.peak_bytes)}"
    if plan.baseline_peak_bytes > plan.peak_bytes:
        title += f", {format_bytes(plan.baseline_peak_bytes)} with everything kept"
    return title


def charged(plan: Plan, measured: MeasuredStep) -> int:
    """Bytes that the plan charges and that were not there, such as state before a first step."""
    return max(0, plan.resident_bytes - measured.resident_bytes)


def _draw_measured(axes: Axes, measured: MeasuredStep, more: int, end: float, size: int) -> None:
    """The measured curve over the prediction; where there is no curve, its peak."""
    if len(measured.timeline) < 2:
        axes.axhline((measured.peak_bytes + more) / size, color=INK, linewidth=1.2)
        return
    scale = end / measured.timeline[-1][0]
    x = [seconds * scale for seconds, _ in measured.timeline]
    y = [(held + more) / size for _, held in measured.timeline]
    axes.plot(x, y, drawstyle="steps-post", color=INK, linewidth=1.1, zorder=5)


def _legends(axes: Axes, plan: Plan, areas: Sequence[Area], measured: MeasuredStep | None) -> None:
    """Areas as they are stacked, topmost first, and the largest values, both at the peak."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    peak = plan.peak_moment()
    at = None if peak is None else plan.timeline.index(peak)
    rows: list[Any] = []
    if measured is not None:
        label = f"measured: peak {format_bytes(measured.peak_bytes)},\ntime stretched to fit"
        if more := charged(plan, measured):
            label += f", and {format_bytes(more)}\ncharged that were not there yet"
        rows.append(Line2D([], [], color=INK, linewidth=1.2, label=label))
    for area in reversed(areas):
        held = f": {format_bytes(area.held[at])}" if at is not None else ""
        rows.append(Patch(color=area.colour, label=area.label + held))
    largest = live_at(plan, at)[:_NAMED] if at is not None else []
    if largest:
        rows.append(Patch(alpha=0, label="\nlargest values there"))
    for value in largest:
        label = f"{value.name}: {format_bytes(value.bytes)}"
        rows.append(Patch(color=COLOURS[value.category], label=label))
    if rows:
        axes.legend(
            handles=rows,
            title="held at the peak",
            loc="upper left",
            bbox_to_anchor=(1.01, 1),
            frameon=False,
            alignment="left",
            borderaxespad=0,
        )
