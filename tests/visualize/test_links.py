"""Links to slower tiers beside compute: in the picture, in the page, in the graph."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from fxmem import Keep, Offload, Plan
from fxmem.picture import Operator, StepPicture
from fxmem.plan import Transfer
from fxmem.visualize.canvas import STYLE
from fxmem.visualize.fold import fold
from fxmem.visualize.graph import scene_of
from fxmem.visualize.links import Stretch, lanes, short_tier
from fxmem.visualize.memory import draw_plan
from tests.visualize.conftest import MIB, moment

TIER = "/mnt/fast/disk"

TIMELINE = (
    moment("addmm", "forward", 0.000, resident=40, temporary=30),
    moment("gelu", "forward", 0.001, resident=40, temporary=20),
    # Half a millisecond is waited for before it.
    moment("gelu_1", "backward", 0.0025, resident=40, temporary=30),
    moment("mm_1", "backward", 0.0035, resident=40, gradients=12),
)


def transfer(direction: str, start: float, end: float, stall: float = 0.0) -> Transfer:
    return Transfer("getitem", TIER, direction, 30 * MIB, 1, 2, start, end, stall)


@pytest.fixture
def moved(plan: Plan) -> Plan:
    """The first value of a split is moved, the second kept."""
    operators = (
        Operator("addmm", "aten.addmm", "net/a", "forward", 30 * MIB, 0.001, ()),
        Operator("gelu", "aten.gelu", "net/b", "forward", 20 * MIB, 0.001, (0,)),
        Operator("gelu_1", "aten.gelu", "net/b", "backward", 20 * MIB, 0.001, (0, 1)),
        Operator("mm_1", "aten.mm", "net/a", "backward", 12 * MIB, 0.001, (2,)),
    )
    return replace(
        plan,
        timeline=TIMELINE,
        decisions={"getitem": Offload("cpu", TIER), "gelu": Keep()},
        value_bytes={"getitem": 30 * MIB, "gelu": 20 * MIB},
        transfers=(transfer("out", 0.0010, 0.0018), transfer("in", 0.0018, 0.0025, 0.0005)),
        picture=StepPicture(operators, (), owners={"getitem": "addmm"}),
    )


def test_lanes_are_compute_and_one_for_each_way(moved):
    rows = lanes(moved)
    assert list(rows) == ["compute", "to disk", "from disk"]
    told = [(s.kind, s.start, pytest.approx(s.end)) for s in rows["compute"]]
    assert told == [
        ("forward", 0.0, 0.002),
        ("backward", 0.0025, 0.0045),
        ("wait", 0.002, 0.0025),
    ]
    tip = "getitem, 30.0 MiB: to /mnt/fast/disk, 0.8 ms behind 1 operator"
    assert rows["to disk"] == (Stretch("moved", 0.0010, 0.0018, tip),)


def test_stretches_break_where_the_kind_of_work_changes(plan, moved):
    again = replace(plan, transfers=moved.transfers)
    kinds = [s.kind for s in lanes(again)["compute"]]
    assert kinds == ["forward", "again", "backward", "wait"]


def test_there_are_no_lanes_without_transfers(plan):
    assert lanes(plan) == {}


@pytest.mark.parametrize(("tier", "name"), [("/a/b", "b"), ("host", "host"), ("/", "/")])
def test_a_directory_goes_by_its_last_name(tier, name):
    assert short_tier(tier) == name


def test_the_picture_has_links_under_memory(plan, moved):
    mpl = pytest.importorskip("matplotlib")
    with mpl.rc_context(STYLE):
        assert len(draw_plan(plan).axes) == 1
        memory, links = draw_plan(moved).axes
    assert [t.get_text() for t in links.get_yticklabels()] == ["compute", "to disk", "from disk"]
    assert [t.get_text() for t in links.get_legend().get_texts()] == [
        "forward", "backward", "moved", "the step waits",
    ]  # fmt: skip
    assert memory.get_xlim() == links.get_xlim() == (0, pytest.approx(4.5))
    (out,) = links.collections[8].get_paths()  # "moved" of the second lane
    left, right = out.get_extents().intervalx
    assert (left, right) == (pytest.approx(1.0), pytest.approx(1.8))


def test_the_page_has_links_where_values_are_moved(plan, moved, tmp_path):
    pytest.importorskip("plotly")
    pages = {}
    for name, some in (("without", plan), ("with", moved)):
        some.report(tmp_path / f"{name}.html")
        pages[name] = (tmp_path / f"{name}.html").read_text()
    assert 'id="links"' in pages["with"] and 'id="links"' not in pages["without"]
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', pages["with"],
                      re.DOTALL)  # fmt: skip
    assert found is not None
    bars = json.loads(found[1])["charts"]["links"]["data"]
    assert [bar["name"] for bar in bars] == ["forward", "backward", "moved", "the step waits"]
    assert bars[2]["y"] == ["to disk", "from disk"]
    assert "30.0 MiB<small>0.5 ms waited for" in pages["with"]


def test_a_folded_part_counts_what_is_moved_of_its_operators(moved):
    first, second = fold(moved, "modules")
    assert first.values["offloaded"] == ("getitem",) and second.values["kept"] == ("gelu",)
    scene = scene_of(moved, "modules")
    (box,) = [b for b in scene.boxes if b.name == "offloaded0"]
    assert (box.kind, box.lines) == ("offloaded", ("moved: 1, 30.0 MiB", "to disk"))
    assert "moved away and back" in [b.lines[0] for b in scene.boxes if "legend" in b.name]


def test_operators_whose_values_are_moved_have_a_shape_of_their_own(moved):
    scene = scene_of(moved, "operators")
    kinds = {b.lines[0]: b.kind for b in scene.boxes if b.name.startswith("run")}
    assert kinds == {
        "addmm": "offloaded", "gelu": "kept", "gelu_1": "backward", "mm_1": "backward",
    }  # fmt: skip
    lines = {(line.tail, line.head): line.kind for line in scene.lines}
    assert lines["run0", "run2"] == "far moved" and lines["run1", "run2"] == "far kept"
    assert any("moved: getitem" in b.tip for b in scene.boxes)


def test_owners_are_saved(moved, tmp_path):
    moved.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").picture.owners == {"getitem": "addmm"}


def test_a_trace_has_a_lane_for_each_way(moved, tmp_path):
    moved.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes_named = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert {f"to {TIER}", f"from {TIER}"} < set(lanes_named)
    (back,) = [e for e in events if e.get("tid") == lanes_named[f"from {TIER}"] and e["ph"] == "X"]
    assert (back["ts"], back["dur"]) == (pytest.approx(1800), pytest.approx(700))
    assert back["args"] == {"bytes": 30 * MIB, "waited for": 0.0005}
