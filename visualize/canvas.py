"""What pictures over time share: style, saving, the budget's line, labels of peaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")

INK, FAINT = "#222222", "#666666"
_BUDGET = "#000000"

STYLE = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.labelsize": 11,
    "legend.fontsize": 10,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "fxmem",  # the same plan gives the same file
}
_WIDTH, _HEIGHT = 10.5, 5.0  # inches
_DOTS = 160  # an inch, in PNG
_BUDGET_IN_SIGHT = 1.6  # a budget further above the peak would squash the picture


def canvas() -> tuple[Figure, Axes]:
    """An empty picture; no pyplot, so no display and no state left behind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    _style(axes)
    return figure, axes


def canvas_over_strip(strip: float) -> tuple[Figure, Axes, Axes]:
    """An empty picture, and below it a strip of so many inches over the same time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT + strip), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(_HEIGHT, strip))
    _style(axes)
    _style(below)
    return figure, axes, below


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)


def save(path: str | Path, draw: Callable[[], Figure]) -> None:
    """Draw and write one picture.

    Parameters
    ----------
    path : str or Path
        Its suffix says what to write.
    draw : callable
        Gives the figure; called only once it is known that it can be written.

    Raises
    ------
    FxmemError
        matplotlib is not installed, or the suffix is not known.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise FxmemError(
            f"pictures end in {', '.join(SUFFIXES)}, and {path.name!r} does not; rename it."
        )
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise FxmemError(
            "pictures need matplotlib, which is not installed: pip install 'fxmem[plot]'"
        ) from error
    with mpl.rc_context(STYLE):
        # Without a date the same plan gives the same file.
        undated = {"Date": None} if suffix == ".svg" else None
        draw().savefig(path, dpi=_DOTS, metadata=undated)


def unit_of(peak_bytes: int) -> tuple[int, str]:
    """Bytes and name of the unit in which a peak reads well."""
    return (2**30, "GiB") if peak_bytes >= 10 * 2**30 else (2**20, "MiB")


def draw_budget(
    axes: Axes, budget: int | None, peak: int, size: int, outside: bool = False
) -> float:
    """The budget's line; gives the height that labels of peaks must clear, or 0.

    Its label stands over its left end, where a plan within the budget leaves room, or
    ``outside``, beyond its right end.
    """
    if budget is None:
        return 0.0
    text = f"budget {format_bytes(budget)}"
    if budget > _BUDGET_IN_SIGHT * peak:
        text += ", above this picture"
        axes.annotate(text, (1, 0.99), xycoords="axes fraction", ha="right", va="top", color=FAINT)
        return 0.0
    height = budget / size
    axes.axhline(height, color=_BUDGET, linestyle=(0, (6, 3)), linewidth=1.4, zorder=4)
    axes.annotate(
        text.replace(" ", "\n", 1) if outside else text,
        (1 if outside else 0, height),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0) if outside else (6, 5),
        textcoords="offset points",
        va="center" if outside else "baseline",
        color=_BUDGET,
        zorder=6,
    )
    return height


def label_point(
    axes: Axes, text: str, point: tuple[float, float], height: float, raised: float, **look: Any
) -> None:
    """Text some points over ``height``, with a thin line down to ``point``."""
    left, right = axes.get_xlim()
    share = (point[0] - left) / (right - left)
    side, foot = (
        ("left", 0.02) if share < 0.3 else ("right", 0.98) if share > 0.7 else ("center", 0.5)
    )
    arrow = {"arrowstyle": "-", "linewidth": 0.8, "shrinkA": 0, "relpos": (foot, 0)}
    axes.annotate(
        text,
        point,
        xytext=(point[0], height),
        textcoords=_raised(axes, raised),
        ha=side,
        arrowprops={**arrow, "color": look["color"]},
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.9, "linewidth": 0},
        zorder=8,
        **look,
    )


def _raised(axes: Axes, points: float) -> Any:
    """Data coordinates, raised by some points."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.figure
    return axes.transData + ScaledTranslation(0, points / 72, figure.dpi_scale_trans)
