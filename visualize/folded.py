"""The step folded by module: a row for each part, forward left, backward right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fxmem.budget import format_bytes
from fxmem.plan import Offload, Plan, Recompute

from .fold import Part, Run, fold
from .links import short_tier
from .scene import Box, Line, Scene, bent, bulge, straight

_BETWEEN_ROWS, _BETWEEN_VALUES, _BETWEEN_COLUMNS = 26.0, 8.0, 60.0
_LEAST_BULGE, _MOST_BULGE = 22.0, 110.0


def folded_scene(plan: Plan, level: str) -> Scene:
    """Boxes and lines of a plan at ``"layers"`` or ``"modules"``."""
    parts = fold(plan, level)
    rows = [_boxes(plan, part, number) for number, part in enumerate(parts)]
    placed = _place(rows)
    lines = [*_within(rows, placed), *_between(parts, placed), *_turn(placed)]
    return Scene((*placed.values(), *_badges(parts, placed)), tuple(lines))


def _badges(parts: Sequence[Part], placed: dict[str, Box]) -> list[Box]:
    """The stage of each row, at the left, where the step runs on several devices."""
    left = min((box.side("left")[0] for box in placed.values()), default=0.0)
    badges = []
    for number, part in enumerate(parts):
        row = placed.get(f"forward{number}")
        if part.stage is not None and row is not None:
            at = (left - _MOST_BULGE, row.at[1])
            badges.append(
                Box(f"badge{number}", f"stage{part.stage}", (str(part.stage),), part.title, at=at)
            )
    return badges


def _boxes(plan: Plan, part: Part, number: int) -> dict[str, Box]:
    """The boxes of one row, by kind, not yet placed."""
    peak = plan.peak_moment()
    row = {}
    for phase in ("forward", "backward"):
        runs = part.of(phase)
        if runs:
            at_peak = any(run.moment is peak for run in runs)
            row[phase] = Box(
                f"{phase}{number}", phase, _sums(plan, part.title, runs, at_peak),
                _tip(part, phase, runs), at_peak,
            )  # fmt: skip
    again = part.of("again")
    for kind, names in part.values.items():
        if not names and not (kind == "recomputed" and again):
            continue
        held = format_bytes(sum(plan.value_bytes.get(name, 0) for name in names))
        word = "moved" if kind == "offloaded" else kind
        words: tuple[str, ...] = (f"{word}: {len(names)}, {held}",)
        at_peak = False
        if kind == "recomputed":
            words = (words[0], f"again in {_time(sum(run.moment.seconds for run in again))}")
            at_peak = any(run.moment is peak for run in again)
            if at_peak:
                words = (*words, f"peak {format_bytes(plan.peak_bytes)}")
        if kind == "offloaded":
            tiers = {d.dst for n in names if isinstance(d := plan.decisions[n], Offload)}
            words = (words[0], "to " + ", ".join(sorted(map(short_tier, tiers))))
        tip = "\n".join((f"{part.title}, {kind}", *_largest(plan, names)))
        row[kind] = Box(f"{kind}{number}", kind, words, tip, at_peak)
    return row


def _sums(plan: Plan, title: str, runs: Sequence[Run], at_peak: bool) -> tuple[str, ...]:
    seconds = sum(run.moment.seconds for run in runs)
    made = sum(run.operator.bytes for run in runs)
    plural = "" if len(runs) == 1 else "s"
    lines: tuple[str, ...] = (
        title,
        f"{len(runs)} operator{plural}, {_time(seconds)}",
        f"makes {format_bytes(made)}",
    )
    return (*lines, f"peak {format_bytes(plan.peak_bytes)}") if at_peak else lines


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _tip(part: Part, phase: str, runs: Sequence[Run]) -> str:
    slowest = sorted(runs, key=lambda run: -run.moment.seconds)[:8]
    rows = [f"{r.operator.name}: {_time(r.moment.seconds)}" for r in slowest]
    return "\n".join((f"{part.title}, {phase}", *rows))


def _largest(plan: Plan, names: Sequence[str]) -> list[str]:
    rows = []
    for name in sorted(names, key=lambda n: -plan.value_bytes.get(n, 0))[:8]:
        decision = plan.decisions[name]
        times = f", {decision.times}×" if isinstance(decision, Recompute) else ""
        rows.append(f"{name}: {format_bytes(plan.value_bytes.get(name, 0))}{times}")
    return rows


def _place(rows: Sequence[dict[str, Box]]) -> dict[str, Box]:
    """Rows from the top down, in three columns: forward, values, backward."""
    columns = (("forward",), ("kept", "recomputed", "offloaded"), ("backward",))
    widths = [
        max((row[k].width for row in rows for k in c if k in row), default=0) for c in columns
    ]
    shown = [i for i, width in enumerate(widths) if width]
    lefts, x = {}, 0.0
    for i in shown:
        lefts[i] = x
        x += widths[i] + _BETWEEN_COLUMNS
    placed: dict[str, Box] = {}
    top = 0.0
    for row in rows:
        stacks = [[row[k] for k in c if k in row] for c in columns]
        tall = max(_height(stack) for stack in stacks)
        for i in shown:
            y = top + (tall - _height(stacks[i])) / 2
            for box in stacks[i]:
                at = (lefts[i] + widths[i] / 2, y + box.height / 2)
                placed[box.name] = Box(box.name, box.kind, box.lines, box.tip, box.peak, at)
                y += box.height + _BETWEEN_VALUES
        top += tall + _BETWEEN_ROWS
    return placed


def _height(stack: Sequence[Box]) -> float:
    return sum(b.height for b in stack) + _BETWEEN_VALUES * max(0, len(stack) - 1)


def _within(rows: Sequence[dict[str, Box]], placed: dict[str, Box]) -> list[Line]:
    """From forward through what becomes of its values to backward."""
    looks = {"kept": "kept", "recomputed": "again", "offloaded": "moved"}
    lines = []
    for row in rows:
        for kind, look in looks.items():
            chain = [row[k].name for k in ("forward", kind, "backward") if kind in row and k in row]
            for tail, head in pairwise(chain):
                start, end = placed[tail].side("right"), placed[head].side("left")
                reach = (end[0] - start[0]) / 2
                points = bent(start, end, (reach, 0), (reach, 0))
                lines.append(Line(tail, head, look, points))
    return lines


def _between(parts: Sequence[Part], placed: dict[str, Box]) -> list[Line]:
    """Reads between parts: forward down, backward up; those past others in an arc."""
    part_of = {run.number: i for i, part in enumerate(parts) for run in part.runs}
    runs = {run.number: run for part in parts for run in part.runs}
    found: dict[tuple[str, int, int], None] = {}
    for run in runs.values():
        for read in run.reads:
            a, b = part_of[read], part_of[run.number]
            phases = {runs[read].moment.phase, run.moment.phase}
            plain = not (run.moment.recomputed or runs[read].moment.recomputed)
            if a != b and len(phases) == 1 and plain:
                found[run.moment.phase, a, b] = None
    lines = []
    for phase, a, b in found:
        tail, head = placed[f"{phase}{a}"], placed[f"{phase}{b}"]
        down = b > a
        if _neighbours(phase, a, b, placed):
            ends = tail.side("bottom" if down else "top"), head.side("top" if down else "bottom")
            lines.append(Line(tail.name, head.name, "reads", straight(*ends)))
        else:
            side = "left" if phase == "forward" else "right"
            aside = min(_MOST_BULGE, _LEAST_BULGE + 9 * abs(b - a))
            points = bulge(tail.side(side), head.side(side), -aside if side == "left" else aside)
            lines.append(Line(tail.name, head.name, "far", points))
    return lines


def _neighbours(phase: str, a: int, b: int, placed: dict[str, Box]) -> bool:
    low, high = sorted((a, b))
    return not any(f"{phase}{i}" in placed for i in range(low + 1, high))


def _turn(placed: dict[str, Box]) -> list[Line]:
    """From where forward ends to where backward starts, at the bottom."""
    forward = [box for box in placed.values() if box.kind == "forward"]
    backward = [box for box in placed.values() if box.kind == "backward"]
    if not forward or not backward:
        return []
    tail, head = forward[-1], backward[-1]
    start, end = tail.side("bottom"), head.side("bottom")
    dip = max(start[1], end[1]) + 36
    return [Line(tail.name, head.name, "reads", (start, (start[0], dip), (end[0], dip), end))]
