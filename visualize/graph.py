"""The step's graph as a file: laid out here, drawn by graphviz."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import graphviz

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.plan import Plan

from .engine import draw
from .fold import choose_level
from .folded import folded_scene
from .scene import FONT, LINES, LOOKS, PEAK, SIZE, Box, Line, Note, Point, Scene, bounds, look_of
from .scene import straight as straight_line
from .unfolded import unfolded_scene

log = logging.getLogger("fxmem")

FORMATS = (".svg", ".png", ".pdf", ".dot", ".gv")
_TITLE, _MARGIN = 13, 24.0
# Of a PNG: along its longer side, as cairo can, and in all. An inch has at most so many dots,
# and with fewer than so many text cannot be read.
_LONGEST, _MOST_PIXELS = 30_000, 100e6
_DOTS, _FEWEST_DOTS = 144.0, 45.0


def render_graph(plan: Plan, path: str | Path, level: str | None = None) -> None:
    """Draw the step's graph, forward left and backward right.

    Parameters
    ----------
    plan : Plan
    path : str or Path
        Ends in ``.svg``, ``.png``, ``.pdf``, or ``.dot`` for graphviz's own language.
    level : {"layers", "modules", "operators"}, optional
        How far to fold. Left out: by size.

    Raises
    ------
    FxmemError
        The suffix or the level is not known, or there is no program of graphviz's.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise FxmemError(f"graphs end in {', '.join(FORMATS)}, and {path.name!r} does not.")
    scene = scene_of(plan, level)
    source = source_of(scene)
    if suffix in (".dot", ".gv"):
        path.write_text(source, encoding="utf-8")
        return
    path.write_bytes(_drawn(scene, source, suffix[1:]))


def scene_of(plan: Plan, level: str | None = None) -> Scene:
    """What is drawn of a plan: its graph under a title and a legend."""
    level = choose_level(plan, level)
    scene = unfolded_scene(plan) if level == "operators" else folded_scene(plan, level)
    for remark in scene.remarks:
        log.warning("%s", remark)
    return _headed(scene, plan, level)


def _headed(scene: Scene, plan: Plan, level: str) -> Scene:
    """With a title, the plan's figures and a legend above it."""
    left, top, _, _ = bounds(scene)
    y = top - 2 * _MARGIN
    legend = _legend(scene, left, y)
    figures = (
        f"peak {format_bytes(plan.peak_bytes)}"
        + (f" of {format_bytes(plan.budget_bytes)} budget" if plan.budget_bytes else "")
        + f", {format_bytes(plan.baseline_peak_bytes)} with everything kept",
        f"time {plan.seconds * 1e3:.4g} ms, {plan.overhead:+.1%}; {plan.status} by {plan.solver}, "
        f"at most {plan.gap:.2%} above the bound",
        *scene.remarks,
    )
    words = [(f"One training step by {level}: forward down on the left, backward up on the right",
              _TITLE + 2), *((line, _TITLE - 1) for line in figures)]  # fmt: skip
    notes, y = [], y - 1.6 * _MARGIN
    for text, size in reversed(words):
        notes.append(Note(text, (left, y), size))
        y -= 1.75 * size
    return Scene(
        (*scene.boxes, *legend.boxes),
        (*scene.lines, *legend.lines),
        (*scene.notes, *notes, *legend.notes),
        remarks=scene.remarks,
    )


def _legend(scene: Scene, left: float, y: float) -> Scene:
    """One box of each kind that is drawn, and what dashed lines mean, in a row."""
    kinds = {box.kind for box in scene.boxes}
    boxes, notes, x = [], [], left
    for kind, look in LOOKS.items():
        if kind in kinds:
            box = Box(f"legend_{kind}", kind, (look.words,))
            boxes.append(replace(box, at=(x + box.width / 2, y)))
            x += box.width + 14
    for kind in sorted((k for k in kinds if k.startswith("stage")), key=lambda k: int(k[5:])):
        box = Box(f"legend_{kind}", kind, (kind[5:],))
        boxes.append(replace(box, at=(x + box.width / 2, y)))
        notes.append(Note(look_of(kind).words, (x + box.width + 6, y), SIZE))
        x += box.width + notes[-1].width + 20
    peak = Box("legend_peak", "forward", ("memory peaks here",), peak=True)
    if any(box.peak for box in scene.boxes):
        boxes.append(replace(peak, at=(x + peak.width / 2, y)))
        x += peak.width + 14
    if not any(line.kind == "again" for line in scene.lines):
        return Scene(tuple(boxes), (), tuple(notes))
    dashes = Line("", "", "again", straight_line((x, y), (x + 40, y)))
    notes.append(Note("to a second run", (x + 48, y), SIZE))
    return Scene(tuple(boxes), (dashes,), tuple(notes))


def source_of(scene: Scene, prefix: str = "") -> str:
    """The scene in graphviz's language, every box and line in its place.

    ``prefix`` stands before the ids of boxes in SVG, where several pictures share a page.
    """
    graph = graphviz.Digraph("step")
    graph.attr(
        layout="neato", splines="true", outputorder="edgesfirst", pad="0.25", bgcolor="white",
        fontname=FONT, tooltip="step",
    )  # fmt: skip
    graph.attr("node", fontname=FONT, fontsize=str(SIZE), style="filled", fixedsize="true")
    for box in scene.boxes:
        graph.node(box.name, _label(box.lines), **_box_attributes(box, prefix))
    for number, note in enumerate(scene.notes):
        middle = (note.at[0] + note.width / 2, note.at[1])
        graph.node(
            f"note{number}", graphviz.escape(note.text) + "\\l", shape="plaintext", style="",
            pos=_pos(middle), fontsize=str(note.size), width=f"{note.width / 72:.3f}",
            height=f"{note.size / 50:.3f}", margin="0",
        )  # fmt: skip
    for number, line in enumerate(scene.lines):
        ends = (line.tail, line.head)
        if not line.tail:  # of the legend: between two points that nothing marks
            ends = (f"from{number}", f"to{number}")
            for name, at in zip(ends, (line.points[0], line.points[-1]), strict=True):
                graph.node(name, "", shape="point", style="invis", width="0.01", pos=_pos(at))
        graph.edge(*ends, pos=_spline(line.points), tooltip=" ", **LINES[line.kind])
    return graph.source


def _label(lines: tuple[str, ...]) -> str:
    return "\\n".join(graphviz.escape(line) for line in lines)


def _box_attributes(box: Box, prefix: str) -> dict[str, str]:
    look = look_of(box.kind)
    attributes = {
        "id": prefix + box.name,
        "class": f"box {box.kind}",
        "shape": look.shape,
        "fillcolor": look.fill,
        "fontcolor": look.ink,
        "color": PEAK if box.peak else look.border,
        "penwidth": "3" if box.peak else "1",
        "pos": _pos(box.at),
        "width": f"{box.width / 72:.3f}",
        "height": f"{box.height / 72:.3f}",
        "tooltip": graphviz.escape(box.tip or " ".join(box.lines)).replace("\n", "\\n"),
    }
    return {**attributes, "style": "filled,rounded"} if look.shape == "box" else attributes


def _pos(at: Point) -> str:
    return f"{at[0]:.1f},{-at[1]:.1f}"


def _spline(points: tuple[Point, ...]) -> str:
    return f"e,{_pos(points[-1])} " + " ".join(map(_pos, _shortened(points)))


def _shortened(points: tuple[Point, ...]) -> Iterator[Point]:
    """The spline without its last points' worth, where the arrow's head stands."""
    (x, y), (u, v) = points[-2], points[-1]
    length = max(1e-6, ((u - x) ** 2 + (v - y) ** 2) ** 0.5)
    cut = min(6.0, length / 2)
    yield from points[:-1]
    yield u - (u - x) / length * cut, v - (v - y) / length * cut


def _drawn(scene: Scene, source: str, kind: str) -> bytes:
    options = ["-Kneato", "-n2"]
    if kind == "png":
        dots = _dots(scene)
        if dots < _FEWEST_DOTS:
            log.warning("the graph is too long to be read as PNG; an .svg can be zoomed into.")
        options.append(f"-Gdpi={dots:.1f}")
    try:
        return draw(source, kind, *options)
    except FxmemError:
        if kind != "pdf":
            raise
    return _as_pdf(_drawn(scene, source, "png"))


def _dots(scene: Scene) -> float:
    """Dots an inch at which a PNG keeps within its limits."""
    left, top, right, bottom = bounds(scene)
    wide, tall = (right - left) / 72 + 1, (bottom - top) / 72 + 1
    return float(min(_DOTS, _LONGEST / max(wide, tall), (_MOST_PIXELS / (wide * tall)) ** 0.5))


def _as_pdf(png: bytes) -> bytes:
    """A page of pixels: the program that the package carries writes no PDF of its own."""
    import io

    try:
        from PIL import Image
    except ImportError as error:
        raise FxmemError(
            "PDF needs the system's graphviz, or Pillow: pip install 'fxmem[plot]'. "
            "A path that ends in .svg is written without."
        ) from error
    page = io.BytesIO()
    Image.MAX_IMAGE_PIXELS = None
    Image.open(io.BytesIO(png)).convert("RGB").save(page, "PDF", resolution=_DOTS)
    return page.getvalue()
