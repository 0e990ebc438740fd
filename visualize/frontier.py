"""Peak against time of the plans of several solvers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError

from .canvas import INK, canvas, save, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette (jfly.uni-koeln.de/color), and signs for those who do not see it.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5E5E5E", "#8C6D31")
_SIGNS = (  # matplotlib's name and plotly's
    ("o", "circle"), ("s", "square"), ("D", "diamond"), ("P", "cross"), ("X", "x"),
    ("^", "triangle-up"), ("*", "star"), ("h", "hexagon"), ("v", "triangle-down"),
)  # fmt: skip


class Point(Protocol):
    """What a row of a comparison must tell: a solver, predicted bytes and seconds.

    Where the plan was run, also ``measured_peak_bytes`` and ``measured_seconds``.
    """

    @property
    def solver(self) -> str: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Curve:
    """The plans of one solver, smallest peak first, and how they are drawn.

    Attributes
    ----------
    solver, colour, sign, plotly_sign : str
    points, measured : tuple of (float, int)
        Seconds and bytes; predicted, and measured where there is any.
    """

    solver: str
    colour: str
    sign: str
    plotly_sign: str
    points: tuple[tuple[float, int], ...]
    measured: tuple[tuple[float, int], ...]


def curves_of(points: Iterable[Point]) -> tuple[Curve, ...]:
    """One curve for each solver, in the order of their first plan.

    Raises
    ------
    FxmemError
        There is no plan.
    """
    rows = list(points)
    if not rows:
        raise FxmemError("there is no plan to compare; give at least one.")
    curves = []
    for number, solver in enumerate(dict.fromkeys(p.solver for p in rows)):
        some = sorted((p for p in rows if p.solver == solver), key=lambda p: p.peak_bytes)
        curves.append(
            Curve(
                solver,
                _COLOURS[number % len(_COLOURS)],
                *_SIGNS[number % len(_SIGNS)],
                tuple((p.seconds, p.peak_bytes) for p in some),
                tuple(filter(None, map(measured_of, some))),
            )
        )
    return tuple(curves)


def measured_of(point: Any) -> tuple[float, int] | None:
    """Seconds and bytes that were measured of a plan, if any were."""
    peak = getattr(point, "measured_peak_bytes", None)
    if peak is None:
        return None
    return getattr(point, "measured_seconds", None) or point.seconds, peak


def plot_frontier(
    points: Iterable[Point], path: str | Path, baseline: tuple[float, int] | None = None
) -> None:
    """Draw peak against time, a line for each solver; what was measured stands hollow.

    Parameters
    ----------
    points : iterable
        Plans, or rows of a comparison.
    path : str or Path
        Ends in ``.svg``, ``.png`` or ``.pdf``.
    baseline : (float, int), optional
        Seconds and peak bytes of the step with everything kept.

    Raises
    ------
    FxmemError
        matplotlib is not installed, the suffix is not known, or there is no plan.
    """
    curves = curves_of(points)
    save(path, lambda: draw_frontier(curves, baseline))


def draw_frontier(curves: Sequence[Curve], baseline: tuple[float, int] | None = None) -> Figure:
    """The figure that `plot_frontier` saves."""
    figure, axes = canvas()
    peaks = [peak for curve in curves for _, peak in curve.points]
    size, unit = unit_of(max([*peaks, baseline[1] if baseline else 0]))
    for curve in curves:
        look: dict[str, Any] = {"color": curve.colour, "marker": curve.sign, "markersize": 7}
        x, y = zip(*curve.points, strict=True)
        axes.plot([s * 1e3 for s in x], [b / size for b in y], label=curve.solver,
                  linewidth=1.3, **look)  # fmt: skip
        if curve.measured:
            x, y = zip(*curve.measured, strict=True)
            axes.plot([s * 1e3 for s in x], [b / size for b in y], linestyle="none",
                      label=f"{curve.solver}, measured", fillstyle="none", **look)  # fmt: skip
    if baseline is not None:
        seconds, peak = baseline
        axes.plot([seconds * 1e3], [peak / size], "+", color=INK, markersize=12,
                  label=f"everything kept, {format_bytes(peak)}")  # fmt: skip
    axes.set_xlabel("time of a step (ms)")
    axes.set_ylabel(f"peak ({unit})")
    axes.set_title("Peak against time: down and to the left is better", loc="left", color=INK)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, borderaxespad=0)
    return figure
