"""A picture of a graph before it is drawn: boxes with places, lines between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Point = tuple[float, float]


@dataclass(frozen=True)
class Look:
    """How one kind of box is told from others: by shape as well as by colour."""

    words: str
    shape: str
    fill: str
    ink: str = "#000000"
    border: str = "#555555"


# Okabe and Ito's palette, told apart with any colour vision (jfly.uni-koeln.de/color).
LOOKS = {
    "forward": Look("forward", "box", "#FFFFFF"),
    "backward": Look("backward", "rect", "#E3E6EA"),
    "kept": Look("value kept in memory", "cylinder", "#0072B2", "#FFFFFF", "#00466E"),
    "freed": Look("freed, computed again later", "ellipse", "#FBE3D0", border="#D55E00"),
    "recomputed": Look("computed again", "hexagon", "#D55E00", "#FFFFFF", "#8F3F00"),
    "offloaded": Look("moved away and back", "parallelogram", "#CC79A7", border="#7A3B60"),
}

# Stages on several devices; beyond these the same looks come again.
_STAGES = (
    ("circle", "#56B4E9"),
    ("square", "#E69F00"),
    ("diamond", "#009E73"),
    ("triangle", "#F0E442"),
    ("octagon", "#BDBDBD"),
    ("house", "#E8B6D0"),
    ("trapezium", "#A3C4A8"),
    ("invtriangle", "#D9C2A0"),
)


def look_of(kind: str) -> Look:
    """The look of a kind of box; that of a stage goes by its number."""
    if not kind.startswith("stage"):
        return LOOKS[kind]
    shape, fill = _STAGES[int(kind.removeprefix("stage")) % len(_STAGES)]
    return Look(kind.replace("stage", "stage "), shape, fill)


# Kind of line -> graphviz attributes.
LINES = {
    "reads": {"color": "#555555", "penwidth": "1.1", "arrowsize": "0.6"},
    "far": {"color": "#80808099", "penwidth": "0.9", "arrowsize": "0.5"},
    "kept": {"color": "#0072B2", "penwidth": "1.3", "arrowsize": "0.6"},
    "far kept": {"color": "#0072B280", "penwidth": "0.9", "arrowsize": "0.5"},
    "again": {"color": "#D55E00", "penwidth": "1.4", "arrowsize": "0.6", "style": "dashed"},
    "far moved": {"color": "#A04A7A99", "penwidth": "0.9", "arrowsize": "0.5"},
    "moved": {"color": "#A04A7A", "penwidth": "1.3", "arrowsize": "0.6"},
}
PEAK = "#C00000"

LETTER, LINE = 5.9, 12.5  # points that a letter and a line of text take, a little generous
FONT, SIZE = "Helvetica,Arial,sans-serif", 10
# Share of a shape's width, and points of its height, that text cannot use.
_SLACK = {
    "box": (1.0, 8),
    "rect": (1.0, 8),
    "cylinder": (1.0, 16),
    "ellipse": (1.3, 16),
    "hexagon": (1.25, 8),
    "parallelogram": (1.45, 8),
}
_BADGE = 30.0  # width and height of a stage's badge, whatever its shape


@dataclass(frozen=True)
class Box:
    """A node: where, how large, what it says.

    Attributes
    ----------
    name : str
        Of the node; unique in the scene.
    kind : str
        Key of `LOOKS`, or ``"stage"`` and a number.
    lines : tuple of str
        What it says, line by line.
    tip : str
        What it says when pointed at.
    peak : bool
        Is this where memory peaks?
    at : (float, float)
        Its centre in points, down and to the right.
    """

    name: str
    kind: str
    lines: tuple[str, ...]
    tip: str = ""
    peak: bool = False
    at: Point = (0.0, 0.0)

    @property
    def width(self) -> float:
        """Points."""
        if self.kind.startswith("stage"):
            return _BADGE
        share, _ = _SLACK[LOOKS[self.kind].shape]
        return max(44.0, (max(map(len, self.lines)) * LETTER + 12) * share)

    @property
    def height(self) -> float:
        """Points."""
        if self.kind.startswith("stage"):
            return _BADGE
        _, more = _SLACK[LOOKS[self.kind].shape]
        return len(self.lines) * LINE + more

    def side(self, where: str) -> Point:
        """Middle of its ``"left"``, ``"right"``, ``"top"`` or ``"bottom"``."""
        x, y = self.at
        dx = {"left": -1, "right": 1}.get(where, 0) * self.width / 2
        dy = {"top": -1, "bottom": 1}.get(where, 0) * self.height / 2
        return x + dx, y + dy


@dataclass(frozen=True)
class Line:
    """An edge.

    Attributes
    ----------
    tail, head : str
        Names of boxes.
    kind : str
        Key of `LINES`.
    points : tuple of points
        Of a cubic spline from tail to head: 1 + 3n of them.
    """

    tail: str
    head: str
    kind: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Note:
    """Text without a box, such as the title of a part; ``at`` is the middle of its left end."""

    text: str
    at: Point
    size: int = 12

    @property
    def width(self) -> float:
        """Points, a little generous."""
        return len(self.text) * LETTER * self.size / SIZE


@dataclass(frozen=True)
class Scene:
    """All that is drawn."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    notes: tuple[Note, ...] = ()
    title: str = ""
    remarks: tuple[str, ...] = field(default=())


def straight(tail: Point, head: Point) -> tuple[Point, ...]:
    """A straight line as a spline."""
    (x, y), (u, v) = tail, head
    return tail, (x + (u - x) / 3, y + (v - y) / 3), (u - (u - x) / 3, v - (v - y) / 3), head


def bent(tail: Point, head: Point, out: Point, into: Point) -> tuple[Point, ...]:
    """A curve that leaves by the way ``out`` and comes in by the way ``into``."""
    (x, y), (u, v) = tail, head
    return tail, (x + out[0], y + out[1]), (u - into[0], v - into[1]), head


def bulge(tail: Point, head: Point, aside: float) -> tuple[Point, ...]:
    """A curve between two sides that face the same way, ``aside`` points out."""
    return bent(tail, head, (aside, 0), (-aside, 0))


def bounds(scene: Scene) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of all boxes, notes and curves."""
    xs, ys = [], []
    for box in scene.boxes:
        xs += [box.at[0] - box.width / 2, box.at[0] + box.width / 2]
        ys += [box.at[1] - box.height / 2, box.at[1] + box.height / 2]
    for note in scene.notes:
        xs += [note.at[0], note.at[0] + note.width]
        ys += [note.at[1] - note.size, note.at[1] + note.size]
    for line in scene.lines:
        xs += [x for x, _ in line.points]
        ys += [y for _, y in line.points]
    return (min(xs), min(ys), max(xs), max(ys)) if xs else (0.0, 0.0, 0.0, 0.0)


def overlapping(boxes: Iterable[Box]) -> list[tuple[str, str]]:
    """Names of boxes that meet; none should."""
    found = []
    active: list[Box] = []
    for box in sorted(boxes, key=lambda b: b.at[1] - b.height / 2):
        top = box.at[1] - box.height / 2
        active = [b for b in active if b.at[1] + b.height / 2 > top]
        found += [
            (b.name, box.name)
            for b in active
            if abs(b.at[0] - box.at[0]) < (b.width + box.width) / 2 - 0.01
        ]
        active.append(box)
    return found
