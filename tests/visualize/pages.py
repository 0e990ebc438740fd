"""Written pages, read back; and a plan that is large."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from fxmem import Keep, Plan, Recompute
from fxmem.picture import Improvement, Operator, StepPicture
from fxmem.plan import Moment
from fxmem.simulate import Lifetime

MIB = 2**20


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def read(path) -> tuple[str, list[tuple[str, dict]]]:
    reader = Reader()
    page = path.read_text()
    reader.feed(page)
    return page, reader.tags


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def large(layers: int = 100, each: int = 10) -> Plan:
    """A plan of two operators forward and backward for each of ``layers * each`` modules."""
    count = layers * each
    operators, moments, lives = [], [], []
    for i in range(count):
        name = f"mm_{i}"
        module = f"model/h.{i // each}/part_{i % each}"
        inputs = (i - 1,) if i else ()
        operators.append(Operator(name, "aten.mm.default", module, "forward", MIB, 1e-4, inputs))
        held = (MIB, 0, 0, i * MIB, 0, MIB, 0)
        moments.append(Moment(name, "forward", False, i * 1e-4, 1e-4, held))
    for i in range(count):
        twin = count - 1 - i
        name, module = f"back_{i}", operators[twin].module
        inputs = (count + i - 1, twin) if i else (twin,)
        operators.append(Operator(name, "aten.mm.default", module, "backward", MIB, 2e-4, inputs))
        start = count * 1e-4 + i * 2e-4
        held = (MIB, 0, 0, twin * MIB, 0, MIB, 0)
        moments.append(Moment(name, "backward", False, start, 2e-4, held))
        lives.append(Lifetime(f"mm_{twin}", MIB, "kept", twin, count + i))
    names = [f"mm_{i}" for i in range(count)]
    decisions = {n: Recompute() if i % 3 == 0 else Keep() for i, n in enumerate(names)}
    progress = (Improvement(0.1, 0.4, 0.2), Improvement(2.0, 0.3, 0.29))
    return Plan(
        budget_bytes=2 * count * MIB,
        peak_bytes=(count + 1) * MIB,
        resident_bytes=MIB,
        baseline_peak_bytes=2 * count * MIB,
        seconds=0.3,
        baseline_seconds=0.3,
        lower_bound_seconds=0.29,
        status="feasible",
        solver="auto",
        sequence=(*names, "turn", *(f"back_{i}" for i in range(count))),
        decisions=decisions,
        value_bytes={n: (i + 1) * 1024 for i, n in enumerate(names)},
        timeline=tuple(moments),
        graph_hash="0",
        picture=StepPicture(tuple(operators), tuple(lives), {"parameters": MIB}, progress),
    )
