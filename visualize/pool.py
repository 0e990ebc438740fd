"""The arena: where every block of a step lies, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fxmem.arena_plan import Request
from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.plan import Plan

from .canvas import FAINT, INK, canvas, save, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette again, and hatches for those who print without colours.
KINDS = {
    "gradient: leaves the step": ("#E69F00", "///"),
    "saved: from forward to backward": ("#0072B2", ""),
    "of one part": ("#56B4E9", ""),
}
_SIGHT = 2e-3  # of the arena; lower blocks get no outline, which would hide them


def plot_pool(plan: Plan, path: str | Path) -> None:
    """Draw every block of the arena as a rectangle: allocator events by bytes.

    Raises
    ------
    FxmemError
        The plan has no arena, matplotlib is not installed, or the suffix is not known.
    """
    if plan.pool is None:
        raise FxmemError(
            "the plan has no arena: it has not run yet, none fits its budget, or there is no C++ "
            'compiler. Draw kind="memory", or look at the log of "fxmem".'
        )
    save(path, lambda: draw_pool(plan))


def draw_pool(plan: Plan) -> Figure:
    """The figure of `plot_pool`."""
    from matplotlib.collections import PolyCollection

    pool = plan.pool
    assert pool is not None
    placed = [r for r in pool.requests if r.offset is not None]
    end = max(r.end for r in pool.requests)
    turn = min((r.start for r in pool.requests if r.phase == "backward"), default=end)
    divisor, unit = unit_of(pool.arena_bytes)
    figure, axes = canvas()
    for label, (colour, hatch) in KINDS.items():
        some = [r for r in placed if kind_of(r, turn, end) == label]
        if not some:
            continue
        total = max_live(some)
        axes.add_collection(
            PolyCollection(
                [_corners(r, divisor) for r in some],
                facecolors=colour,
                edgecolors="white",
                linewidths=[0.4 if r.bytes > _SIGHT * pool.arena_bytes else 0.0 for r in some],
                hatch=hatch,
                label=f"{label}, {format_bytes(total)} at once",
            )
        )
    axes.axvline(turn, color=INK, linewidth=1, linestyle=":")
    axes.text(turn, 1.01, "turn", transform=axes.get_xaxis_transform(), ha="center", color=FAINT)
    axes.set_xlim(0, end)
    axes.set_ylim(0, pool.arena_bytes / divisor)
    axes.set_xlabel("allocations and frees of one step, in order")
    axes.set_ylabel(f"offset in the arena, {unit}")
    axes.set_title(
        f"Arena of {format_bytes(pool.arena_bytes)}: {pool.ratio:.3f} of what lives at once, "
        f"{len(placed)} blocks",
        loc="left",
        pad=18,
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    return figure


def kind_of(request: Request, turn: int, end: int) -> str:
    """What a block is held for."""
    leaves, saved, part = KINDS
    if request.end >= end:
        return leaves
    return saved if request.start < turn < request.end else part


def max_live(requests: Sequence[Request]) -> int:
    """Most bytes of these blocks at once."""
    changes = sorted(change for r in requests for change in ((r.start, r.bytes), (r.end, -r.bytes)))
    live = most = 0
    for _, change in changes:
        live += change
        most = max(most, live)
    return most


def _corners(request: Request, divisor: float) -> list[tuple[float, float]]:
    assert request.offset is not None
    low, high = request.offset / divisor, (request.offset + request.bytes) / divisor
    start, end = request.start, request.end
    return [(start, low), (end, low), (end, high), (start, high)]
