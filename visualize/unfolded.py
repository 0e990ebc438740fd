"""Every run of every operator: a row for each part, each side laid out by graphviz."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import graphviz

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.plan import Keep, Offload, Plan, Recompute

from .engine import draw
from .fold import Run, fold, moved_parts
from .scene import Box, Line, Note, Point, Scene, bent

_BETWEEN_ROWS, _BETWEEN_SIDES, _TITLE = 54.0, 170.0, 14
# Graphviz takes more than a second for a side that is larger.
_MOST_RUNS = 150
_COLUMN_GAP, _LINE_GAP, _COLUMNS = 16.0, 26.0, 4

Spline = tuple[Point, ...]


@dataclass(frozen=True)
class Side:
    """Boxes of one side of a row and the lines between them, from (0, 0) right and down."""

    boxes: tuple[Box, ...]
    lines: tuple[tuple[int, int, Spline], ...]
    width: float
    height: float


def unfolded_scene(plan: Plan) -> Scene:
    """Boxes and lines of a plan, operator by operator."""
    parts = fold(plan, "operators")
    sides = [(part.of("forward"), _later(part.runs)) for part in parts]
    boxes = _boxes(plan, [run for part in parts for run in part.runs])
    laid_out, remarks = _lay_out([side for row in sides for side in row], boxes)
    left = max((side.width for side in laid_out[::2]), default=0.0)
    placed: dict[str, Box] = {}
    lines: list[Line] = []
    notes, badges, top = [], [], 0.0
    for number, (part, forward, backward) in enumerate(
        zip(parts, laid_out[::2], laid_out[1::2], strict=True)
    ):
        tall = max(forward.height, backward.height)
        notes.append(Note(part.title, (0.0, top - _TITLE - 6), _TITLE))
        if part.stage is not None:
            at = (-30.0, top - _TITLE - 6)
            badges.append(Box(f"badge{number}", f"stage{part.stage}", (str(part.stage),), at=at))
        for side, x in ((forward, left - forward.width), (backward, left + _BETWEEN_SIDES)):
            shift = (x, top + (tall - side.height) / 2)
            placed.update({b.name: replace(b, at=_moved(b.at, shift)) for b in side.boxes})
            for tail, head, points in side.lines:
                moved = tuple(_moved(p, shift) for p in points)
                lines.append(Line(f"run{tail}", f"run{head}", _kind(boxes[tail]), moved))
        top += tall + _BETWEEN_ROWS
    drawn = {(line.tail, line.head) for line in lines}
    runs = [run for part in parts for run in part.runs]
    lines += _across(runs, placed, drawn)
    return Scene((*placed.values(), *badges), tuple(lines), tuple(notes), remarks=remarks)


def _later(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(r for r in runs if r.moment.phase == "backward" or r.moment.recomputed)


def _moved(at: Point, by: Point) -> Point:
    return at[0] + by[0], at[1] + by[1]


def _kind(tail: Box) -> str:
    return "again" if tail.kind == "recomputed" else "reads"


def _boxes(plan: Plan, runs: Sequence[Run]) -> dict[int, Box]:
    """A box for each run, by its number."""
    peak = plan.peak_moment()
    parts = moved_parts(plan)
    boxes = {}
    for run in runs:
        operator, moment = run.operator, run.moment
        held = f", {format_bytes(operator.bytes)}" if operator.bytes else ""
        lines: tuple[str, ...] = (operator.name, f"{moment.seconds * 1e3:.3g} ms{held}")
        if moment is peak:
            lines = (*lines, f"peak {format_bytes(plan.peak_bytes)}")
        tip = (
            f"{operator.name}: {operator.target}\n{operator.module.replace('/', '.')}\n"
            f"{format_bytes(moment.live_bytes)} held while it runs"
        )
        kind = _kind_of(plan, run)
        if kind in ("forward", "kept") and (moved := parts.get(operator.name)):
            kind, tip = "offloaded", f"{tip}\nmoved: {', '.join(moved)}"
        boxes[run.number] = Box(f"run{run.number}", kind, lines, tip, moment is peak)
    return boxes


def _kind_of(plan: Plan, run: Run) -> str:
    if run.moment.recomputed:
        return "recomputed"
    decision = plan.decisions.get(run.operator.name)
    if run.moment.phase == "forward":
        kinds = {Keep: "kept", Recompute: "freed", Offload: "offloaded"}
        return kinds.get(type(decision), "forward")
    return "backward"


def _lay_out(
    sides: Sequence[Sequence[Run]], boxes: Mapping[int, Box]
) -> tuple[list[Side], tuple[str, ...]]:
    """Each side by graphviz, all in one call; large ones, or all without it, in columns."""
    small = [side for side in sides if 0 < len(side) <= _MOST_RUNS]
    remark = f"parts of more than {_MOST_RUNS} operators are laid out in columns, which is faster"
    try:
        plain = draw("\n".join(_source(side, boxes) for side in small), "plain") if small else b""
        texts = plain.decode().split("\nstop")
        found = {id(side): _read(text, boxes) for side, text in zip(small, texts, strict=False)}
    except FxmemError:
        found, remark = {}, "laid out in columns: graphviz is not installed"
    laid_out = [found.get(id(side)) or _columns(side, boxes) for side in sides]
    crowded = any(side and id(side) not in found for side in sides)
    return laid_out, (remark,) if crowded else ()


def _source(side: Sequence[Run], boxes: Mapping[int, Box]) -> str:
    """What graphviz needs to lay out one side; backward ones grow upwards."""
    up = side[0].moment.phase == "backward"
    graph = graphviz.Digraph(graph_attr={"rankdir": "BT" if up else "TB", "ranksep": "0.3"})
    graph.attr("graph", nodesep="0.15", nslimit="3", nslimit1="3")
    graph.attr("node", shape="box", fixedsize="true", label="")
    graph.attr("edge", arrowhead="none")
    inside = {run.number for run in side}
    for run in side:
        box = boxes[run.number]
        size = {"width": f"{box.width / 72:.3f}", "height": f"{box.height / 72:.3f}"}
        graph.node(str(run.number), **size)
        for read in run.reads:
            if read in inside:
                graph.edge(str(read), str(run.number))
    return graph.source


def _read(text: str, boxes: Mapping[int, Box]) -> Side:
    """A side from graphviz's ``plain`` format: inches, up from the bottom."""
    placed, lines = [], []
    width = height = 0.0
    for row in text.splitlines():
        words = row.split()
        if not words:
            continue
        if words[0] == "graph":
            width, height = float(words[2]) * 72, float(words[3]) * 72
        elif words[0] == "node":
            at = float(words[2]) * 72, height - float(words[3]) * 72
            placed.append(replace(boxes[int(words[1])], at=at))
        elif words[0] == "edge":
            numbers = [float(w) * 72 for w in words[4 : 4 + 2 * int(words[3])]]
            points = tuple(
                (x, height - y) for x, y in zip(numbers[::2], numbers[1::2], strict=True)
            )
            lines.append((int(words[1]), int(words[2]), points))
    return Side(tuple(placed), tuple(lines), width, height)


def _columns(side: Sequence[Run], boxes: Mapping[int, Box]) -> Side:
    """Runs in order, a few to a line; backward ones from the bottom up."""
    order = [boxes[run.number] for run in side]
    if not order:
        return Side((), (), 0.0, 0.0)
    wide = max(box.width for box in order) + _COLUMN_GAP
    tall = max(box.height for box in order) + _LINE_GAP
    count = -(-len(order) // _COLUMNS)
    up = side[0].moment.phase == "backward"
    placed = []
    for i, box in enumerate(order):
        line = i // _COLUMNS
        line = count - 1 - line if up else line
        placed.append(replace(box, at=((i % _COLUMNS + 0.5) * wide, (line + 0.5) * tall)))
    return Side(tuple(placed), (), min(len(order), _COLUMNS) * wide, count * tall)


def _across(
    runs: Sequence[Run], placed: Mapping[str, Box], drawn: set[tuple[str, str]]
) -> list[Line]:
    """Lines that graphviz has not laid out: between parts, between sides, to second runs."""
    lines: list[Line] = []
    first: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.number):
        head = placed[f"run{run.number}"]
        for read in run.reads:
            tail = placed[f"run{read}"]
            if (tail.name, head.name) not in drawn:
                lines.append(_line(tail, head))
        origin = first.setdefault(run.operator.name, run)
        if run.moment.recomputed and origin is not run:
            line = _line(placed[f"run{origin.number}"], head)
            lines.append(replace(line, kind="again"))
    return lines


def _line(tail: Box, head: Box) -> Line:
    """From side to side where they stand side by side, else from bottom to top or back."""
    later = {"backward", "recomputed"}
    if tail.kind not in later and head.kind in later:
        start, end = tail.side("right"), head.side("left")
        reach = (end[0] - start[0]) / 2
        kind = {"kept": "far kept", "offloaded": "far moved"}.get(tail.kind, "far")
        return Line(tail.name, head.name, kind, bent(start, end, (reach, 0), (reach, 0)))
    if abs(head.at[1] - tail.at[1]) < max(head.height, tail.height):
        ahead = head.at[0] > tail.at[0]
        start, end = (
            tail.side("right" if ahead else "left"),
            head.side("left" if ahead else "right"),
        )
        reach = (end[0] - start[0]) / 2
        return Line(tail.name, head.name, "far", bent(start, end, (reach, 0), (reach, 0)))
    down = head.at[1] > tail.at[1]
    start, end = tail.side("bottom" if down else "top"), head.side("top" if down else "bottom")
    reach = max(20.0, abs(end[1] - start[1]) / 3) * (1 if down else -1)
    return Line(tail.name, head.name, "far", bent(start, end, (0, reach), (0, reach)))
