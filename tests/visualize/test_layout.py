"""Any graph is laid out without overlaps, at every level, and its lines end at their boxes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem import Keep, Offload, Plan, Recompute
from fxmem.picture import Operator, StepPicture
from fxmem.plan import Moment
from fxmem.visualize.fold import LEVELS, fold
from fxmem.visualize.graph import scene_of
from fxmem.visualize.scene import overlapping


@st.composite
def plans(draw) -> Plan:
    """Plans of random graphs in random modules, with what is recomputed run again at random."""
    names = st.sampled_from(["", "a", "a/b", "a/b/c", "a/long_module_name.0", "d", "d/e.1/f"])
    count = draw(st.integers(1, 14))
    turn = draw(st.integers(0, count))
    operators = []
    for i in range(count):
        inputs = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        phase = "forward" if i < turn else "backward"
        name = f"operator_{i}" * draw(st.integers(1, 3))
        operators.append(
            Operator(name, "aten.add.Tensor", draw(names), phase, 10**i, 1e-3, tuple(inputs))
        )
    kinds = st.sampled_from([Keep(), Recompute(), Offload("cuda:0", "cpu")])
    decisions = {o.name: draw(kinds) for o in operators[:turn] if draw(st.booleans())}
    runs = [(o, o.phase, False) for o in operators]
    for o in operators[:turn]:
        if isinstance(decisions.get(o.name), Recompute):
            runs.insert(draw(st.integers(turn, len(runs))), (o, "backward", True))
    timeline = tuple(
        Moment(o.name, phase, again, i * 1e-3, 1e-3, (i, 0, 0, 0, 0, 0, 0))
        for i, (o, phase, again) in enumerate(runs)
    )
    return Plan(
        budget_bytes=draw(st.none() | st.integers(1, 10**9)),
        peak_bytes=len(runs),
        resident_bytes=0,
        baseline_peak_bytes=len(runs),
        seconds=1.0,
        baseline_seconds=1.0,
        lower_bound_seconds=1.0,
        status="optimal",
        solver="auto",
        sequence=(),
        decisions=decisions,
        value_bytes={name: 1000 for name in decisions},
        timeline=timeline,
        graph_hash="0",
        stages=tuple(draw(st.lists(st.sampled_from([o.name for o in operators]), max_size=3))),
        picture=StepPicture(tuple(operators), ()),
    )


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans(), st.sampled_from(sorted(LEVELS)))
def test_no_boxes_overlap_and_lines_end_at_boxes(plan: Plan, level: str) -> None:
    scene = scene_of(plan, level)
    assert overlapping(scene.boxes) == []
    boxes = {box.name: box for box in scene.boxes}
    assert len(boxes) == len(scene.boxes)
    for line in scene.lines:
        assert len(line.points) % 3 == 1
        for name, point in ((line.tail, line.points[0]), (line.head, line.points[-1])):
            if name:
                box = boxes[name]
                assert abs(point[0] - box.at[0]) <= box.width / 2 + 2
                assert abs(point[1] - box.at[1]) <= box.height / 2 + 2


@settings(derandomize=True, max_examples=40, deadline=None)
@given(plans())
def test_every_run_and_every_read_is_drawn(plan: Plan) -> None:
    scene = scene_of(plan, "operators")
    drawn = {box.name for box in scene.boxes if box.name.startswith("run")}
    runs = [run for part in fold(plan, "operators") for run in part.runs]
    assert drawn == {f"run{run.number}" for run in runs} and len(runs) == len(plan.timeline)
    lines = {(line.tail, line.head) for line in scene.lines}
    assert {(f"run{read}", f"run{run.number}") for run in runs for read in run.reads} <= lines
