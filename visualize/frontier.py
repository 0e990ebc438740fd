"""Time against peak of the plans that solvers made: lower and further left is better."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError

from .canvas import FAINT, INK, canvas, save, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fxmem.comparison import ComparedPlan, Comparison

# Solvers are told apart by the mark too: not everyone tells the colours apart.
_MARKS = "osD^vP*X<>ph"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C564B")


def plot_frontier(comparison: Comparison, path: str | Path) -> None:
    """Draw one line a solver: each plan's time as a multiple of the step's as it is.

    Parameters
    ----------
    comparison : Comparison
        Where plans were measured, measurements are drawn, and predictions otherwise.
    path : str or Path
        Ends in .svg, .png or .pdf.

    Raises
    ------
    FxmemError
        No solver found a plan, or the file cannot be written.
    """
    if all(row.plan is None for row in comparison.rows):
        raise FxmemError("no solver found a plan, so there is nothing to draw.")
    save(path, lambda: _figure(comparison))


def _figure(comparison: Comparison) -> Figure:
    figure, axes = canvas()
    eager = comparison.eager
    peak = eager.peak_bytes if eager else comparison.baseline_peak_bytes
    size, unit = unit_of(peak)
    solvers = list(dict.fromkeys(row.solver for row in comparison.rows))
    for i, solver in enumerate(solvers):
        found = [r for r in comparison.rows if r.solver == solver and r.plan is not None]
        # Plans for several budgets may be one and the same.
        points = sorted({_point(row, comparison) for row in found})
        if points:
            axes.plot(
                [held / size for held, _ in points],
                [ratio for _, ratio in points],
                marker=_MARKS[i % len(_MARKS)],
                color=COLOURS[i % len(COLOURS)],
                label=solver,
                linewidth=1.4,
                markersize=7,
                alpha=0.9,
            )
    axes.plot([peak / size], [1.0], marker="|", color=INK, markersize=16, linestyle="none")
    axes.annotate(
        f"as it is\n{format_bytes(peak)}",
        (peak / size, 1.0),
        xytext=(0, 14),
        textcoords="offset points",
        ha="right",
        color=FAINT,
    )
    said = "measured" if eager else "predicted"
    axes.set_xlabel(f"peak of the step, {unit} ({said})")
    axes.set_ylabel("time, as a multiple of the step as it is")
    axes.set_title("Time against peak: lower and further left is better", loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    axes.margins(0.06, 0.12)
    return figure


def _point(row: ComparedPlan, comparison: Comparison) -> tuple[int, float]:
    if row.measured is not None and comparison.eager is not None:
        return row.measured.peak_bytes, row.measured.seconds / comparison.eager.seconds
    assert row.plan is not None
    return row.plan.peak_bytes, 1 + row.plan.overhead
