"""Links to slower tiers beside compute: what is moved when, and what the step waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from fxmem.budget import format_bytes
from fxmem.plan import Moment, Plan

from .areas import COLOURS
from .canvas import INK
from .scene import LOOKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Kind of work -> words and colour.
WORK = {
    "forward": ("forward", "#9FC5DD"),
    "backward": ("backward", "#8A93A0"),
    "again": ("computed again", COLOURS["recomputed"]),
    "moved": ("moved", LOOKS["offloaded"].fill),
    "wait": ("the step waits", "#222222"),
}
_HATCHES = {"again": "///", "moved": "", "wait": ""}  # also for those who print without colours


@dataclass(frozen=True)
class Stretch:
    """Something at work for a while: a run of operators, one transfer, a wait.

    Attributes
    ----------
    kind : str
        Key of `WORK`.
    start, end : float
        Seconds since the step began; predicted.
    tip : str
        What it says when pointed at.
    """

    kind: str
    start: float
    end: float
    tip: str


def lanes(plan: Plan) -> dict[str, tuple[Stretch, ...]]:
    """Name of a lane -> what is at work there; compute first. Empty where nothing is moved."""
    if not plan.transfers:
        return {}
    found: dict[str, list[Stretch]] = {"compute": _compute(plan)}
    for t in sorted(plan.transfers, key=lambda t: (t.direction != "out", t.start)):
        way = "to" if t.direction == "out" else "from"
        behind = len(t.hides_behind(plan))
        tip = (
            f"{t.value}, {format_bytes(t.bytes)}: {way} {t.tier}, {(t.end - t.start) * 1e3:.3g} ms "
            f"behind {behind} operator{'' if behind == 1 else 's'}"
        )
        lane = found.setdefault(f"{way} {short_tier(t.tier)}", [])
        lane.append(Stretch("moved", t.start, t.end, tip))
        if t.stall > 0:
            told = f"{t.stall * 1e3:.3g} ms, for {t.value}"
            found["compute"].append(Stretch("wait", t.end - t.stall, t.end, told))
    return {name: tuple(stretches) for name, stretches in found.items()}


def short_tier(tier: str) -> str:
    """A tier's name for pictures: of a directory the last part only."""
    return PurePath(tier).name or tier


def _compute(plan: Plan) -> list[Stretch]:
    """Operators of one kind without a break between them are one stretch."""
    rows: list[Stretch] = []
    last: Moment | None = None
    count = 0
    for moment in plan.timeline:
        kind = "again" if moment.recomputed else moment.phase
        end = moment.start + moment.seconds
        on = last is not None and moment.start - (last.start + last.seconds) < 1e-9
        start = moment.start
        if on and rows[-1].kind == kind:
            start = rows.pop().start
            count += 1
        else:
            count = 1
        rows.append(Stretch(kind, start, end, f"{count} operator{'' if count == 1 else 's'}"))
        last = moment
    return rows


def draw_links(axes: Axes, rows: Mapping[str, Sequence[Stretch]]) -> None:
    """The `lanes` under a picture over time (in ms), compute at the top, and their legend."""
    from matplotlib.patches import Patch

    for place, stretches in enumerate(rows.values()):
        for kind, (_, colour) in WORK.items():
            some = [s for s in stretches if s.kind == kind]
            axes.broken_barh(
                [(s.start * 1e3, (s.end - s.start) * 1e3) for s in some],
                (place - 0.36, 0.72),
                facecolor=colour,
                # A short transfer on a long step is still a line.
                edgecolor="white" if _HATCHES.get(kind) else colour,
                linewidth=0.0 if kind in ("forward", "backward", "again") else 0.8,
                hatch=_HATCHES.get(kind, ""),
            )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    kinds = {s.kind for stretches in rows.values() for s in stretches}
    axes.legend(
        handles=[
            Patch(facecolor=colour, label=words, hatch=_HATCHES.get(kind, ""), edgecolor="white")
            for kind, (words, colour) in WORK.items()
            if kind in kinds
        ],
        loc="upper left",
        bbox_to_anchor=(1.01, 1.1),
        frameon=False,
        labelcolor=INK,
        borderaxespad=0,
    )
