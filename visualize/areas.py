"""What the bytes of a step are held for: the areas of pictures over time."""

from __future__ import annotations

from dataclasses import dataclass

from fxmem.plan import CATEGORIES, Plan
from fxmem.simulate import Lifetime


@dataclass(frozen=True)
class Area:
    """One area of a stack.

    Attributes
    ----------
    name, label : str
        For machines and for people.
    colour : str
    held : tuple of int
        Bytes while each operator of the timeline runs.
    """

    name: str
    label: str
    colour: str
    held: tuple[int, ...]


# Okabe and Ito's palette, told apart with any colour vision (jfly.uni-koeln.de/color).
COLOURS = {
    "resident": "#B3B3B3",
    "gradients": "#E69F00",
    "outputs": "#F0E442",
    "kept": "#0072B2",
    "recomputed": "#D55E00",
    "temporary": "#56B4E9",
    "workspace": "#CC79A7",
}
LABELS = {
    "resident": "resident: parameters, inputs,\noptimizer state",
    "gradients": "gradients of parameters",
    "outputs": "outputs the caller holds",
    "kept": "kept for backward",
    "recomputed": "recomputed",
    "temporary": "temporary",
    "workspace": "workspace of one operator",
}

# Kinds of residents, bottom first, as in `fxmem.residents.Residents`.
RESIDENTS = {
    "parameters": ("parameters", "#5E5E5E"),
    "buffers": ("buffers", "#7A7A7A"),
    "optimizer": ("optimizer state", "#949494"),
    "gradients": ("gradients from before", "#B98A33"),
    "inputs": ("inputs", "#BDBDBD"),
}


def areas_of(plan: Plan) -> tuple[Area, ...]:
    """The areas of a plan, as they are stacked from the bottom; residents by kind, if known."""
    rows = []
    for i, category in enumerate(CATEGORIES):
        held = tuple(moment.held[i] for moment in plan.timeline)
        if category == "resident":
            rows += _residents(plan, held)
        else:
            rows.append(Area(category, LABELS[category], COLOURS[category], held))
    return tuple(rows)


def _residents(plan: Plan, held: tuple[int, ...]) -> list[Area]:
    known = plan.picture.residents if plan.picture else {}
    rows, rest = [], held
    for kind, (label, colour) in RESIDENTS.items():
        size = known.get(kind, 0)
        if size and min(rest, default=0) >= size:
            rows.append(Area(f"resident {kind}", label, colour, (size,) * len(held)))
            rest = tuple(h - size for h in rest)
    label = LABELS["resident"] if not rows else "other residents"
    return [*rows, Area("resident", label, COLOURS["resident"], rest)]


def live_at(plan: Plan, position: int) -> list[Lifetime]:
    """Values held while one operator of the timeline runs, largest first."""
    lives = plan.picture.lifetimes if plan.picture else ()
    found = [life for life in lives if life.first <= position <= life.last]
    return sorted(found, key=lambda life: (-life.bytes, life.name))
