"""The drawn graph: it holds what the plan holds, readable, on any machine."""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fxmem import FxmemError, Offload, Plan
from fxmem.visualize import engine, unfolded
from fxmem.visualize.fold import LEVELS, choose_level, fold, runs_of
from fxmem.visualize.graph import scene_of
from fxmem.visualize.scene import LOOKS, PEAK, Box, Note, look_of, overlapping


def kinds(scene) -> set[str]:
    return {box.kind for box in scene.boxes if not box.name.startswith("legend")}


def of_notes(notes: tuple[Note, ...]) -> list[Box]:
    """Boxes about as large as some texts, to look for overlaps."""
    return [
        Box(note.text, "backward", (note.text,), at=(note.at[0] + note.width / 2, note.at[1]))
        for note in notes
    ]


def test_kinds_differ_in_shape_and_in_colour() -> None:
    assert len({look.shape for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.fill for look in LOOKS.values()}) == len(LOOKS)


def test_parts_are_layers_modules_or_the_whole(traced: Plan) -> None:
    layers = [part.title for part in fold(traced, "layers")]
    assert layers == [
        "blocks.0.up", "blocks.0", "blocks.0.down",
        "blocks.1.up", "blocks.1", "blocks.1.down",
        "blocks.2.up", "blocks.2", "blocks.2.down",
        "outside modules",
    ]  # fmt: skip


def test_operators_are_drawn_by_parts_as_large_as_can_be_read(traced: Plan, monkeypatch) -> None:
    whole = ["blocks.0", "blocks.1", "blocks.2", "outside modules"]
    assert [part.title for part in fold(traced, "operators")] == whole
    monkeypatch.setattr("fxmem.visualize.fold._MOST_TOGETHER", 3)
    assert len(fold(traced, "operators")) == 10


def test_runs_and_values_of_parts_are_those_of_the_plan(traced: Plan) -> None:
    parts = fold(traced, "layers")
    assert sorted(run.number for part in parts for run in part.runs) == list(
        range(len(traced.timeline))
    )
    for part in parts:
        split = [run for phase in ("forward", "backward", "again") for run in part.of(phase)]
        assert sorted(run.number for run in split) == sorted(run.number for run in part.runs)
    named = [n for part in parts for names in part.values.values() for n in names]
    assert sorted(named) == sorted(traced.decisions)


def test_a_run_reads_the_latest_copy(traced: Plan) -> None:
    runs = runs_of(traced)
    again = [run for run in runs if run.moment.recomputed]
    assert again
    for run in again:
        reader = next(r for r in runs[run.number + 1 :] if run.number in r.reads)
        assert run.operator.name in {
            traced.picture.operators[i].name for i in reader.operator.inputs
        }


def test_level_follows_size(plan, traced: Plan) -> None:
    assert choose_level(plan, None) == "operators"
    assert choose_level(replace(traced, timeline=traced.timeline * 3), None) == "layers"
    with pytest.raises(FxmemError, match="give one of layers, modules, operators"):
        choose_level(plan, "atoms")


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_overlaps(traced: Plan, level: str) -> None:
    scene = scene_of(traced, level)
    assert overlapping([*scene.boxes, *of_notes(scene.notes)]) == []


def test_overlaps_would_be_seen() -> None:
    a, b = Box("a", "forward", ("a",)), Box("b", "forward", ("b",), at=(30.0, 10.0))
    assert overlapping([a, b]) == [("a", "b")]
    assert overlapping([a, replace(b, at=(50.0, 0.0))]) == []


def test_folded_boxes_carry_bytes_time_and_the_peak(plan) -> None:
    scene = scene_of(plan, "layers")
    assert kinds(scene) == {"forward", "backward", "kept", "recomputed"}
    text = "\n".join(line for box in scene.boxes for line in box.lines)
    assert "3 operators, 3 ms" in text
    assert "kept: 1, 30.0 MiB" in text
    assert "recomputed: 1, 20.0 MiB\nagain in 1 ms" in text
    (peak,) = [b for b in scene.boxes if b.peak and not b.name.startswith("legend")]
    assert peak.kind == "recomputed" and "peak 93.0 MiB" in peak.lines
    dashed = [line for line in scene.lines if line.kind == "again" and line.tail]
    assert [(line.tail, line.head) for line in dashed] == [
        ("forward0", "recomputed0"),
        ("recomputed0", "backward0"),
    ]


def test_operators_are_drawn_one_by_one_with_a_dashed_line_to_the_second_run(plan) -> None:
    scene = scene_of(plan, "operators")
    drawn = {
        box.name: (box.kind, box.lines[0]) for box in scene.boxes if box.name.startswith("run")
    }
    assert drawn == {
        "run0": ("forward", "embedding"),
        "run1": ("kept", "addmm"),
        "run2": ("freed", "gelu"),
        "run3": ("recomputed", "gelu"),
        "run4": ("backward", "mm_1"),
    }
    dashed = [(line.tail, line.head) for line in scene.lines if line.kind == "again"]
    assert ("run2", "run3") in dashed and ("run3", "run4") in dashed


def test_forward_goes_down_and_backward_up(traced: Plan) -> None:
    scene = scene_of(traced, "operators")
    at = {box.name: box for box in scene.boxes}
    for line in scene.lines:
        if line.tail and {at[line.tail].kind, at[line.head].kind} == {"forward"}:
            assert at[line.tail].at[1] < at[line.head].at[1]
        if line.tail and {at[line.tail].kind, at[line.head].kind} == {"backward"}:
            assert at[line.tail].at[1] > at[line.head].at[1]


def test_offloaded_values_have_their_own_look(plan) -> None:
    moved = replace(plan, decisions={**plan.decisions, "addmm": Offload("cuda:0", "cpu")})
    scene = scene_of(moved, "layers")
    (box,) = [b for b in scene.boxes if b.kind == "offloaded" and not b.name.startswith("legend")]
    assert box.lines == ("moved: 1, 30.0 MiB", "to cpu")
    assert "offloaded" in kinds(scene_of(moved, "operators"))


@pytest.mark.parametrize("level", LEVELS)
def test_stages_are_told_apart(traced: Plan, tmp_path, level: str) -> None:
    first = {o.module: o.name for o in reversed(traced.picture.operators) if o.phase == "forward"}
    staged = replace(traced, stages=(first["blocks.1/up"], first["blocks.2/up"]))
    assert {part.title[:8]: part.stage for part in fold(staged, level)} == {
        "blocks.0": 0, "blocks.1": 1, "blocks.2": 2, "outside ": 2,
    }  # fmt: skip
    scene = scene_of(staged, level)
    badges = [box for box in scene.boxes if box.name.startswith("badge")]
    assert [box.kind for box in badges] == [f"stage{p.stage}" for p in fold(staged, level)]
    looks = [look_of(f"stage{i}") for i in range(3)]
    assert len({look.shape for look in looks}) == len({look.fill for look in looks}) == 3
    assert {f"legend_stage{i}" for i in range(3)} <= {box.name for box in scene.boxes}
    assert overlapping([*scene.boxes, *of_notes(scene.notes)]) == []
    staged.render(tmp_path / "plan.svg", level=level)
    assert "stage 2" in (tmp_path / "plan.svg").read_text()


def test_the_legend_tells_of_what_is_drawn_and_no_more(plan) -> None:
    for level in LEVELS:
        scene = scene_of(plan, level)
        legend = {box.kind for box in scene.boxes if box.name.startswith("legend")}
        assert legend == kinds(scene)


@pytest.mark.parametrize("level", LEVELS)
def test_svg_holds_every_box_and_dashed_lines(plan, tmp_path, level: str) -> None:
    plan.render(tmp_path / "plan.svg", level=level)
    tree = ElementTree.parse(tmp_path / "plan.svg")
    ids = {element.get("id") for element in tree.iter()}
    scene = scene_of(plan, level)
    assert {box.name for box in scene.boxes} <= ids
    text = (tmp_path / "plan.svg").read_text()
    assert PEAK.lower() in text and "stroke-dasharray" in text
    drawn = "".join(element.text or "" for element in tree.iter())
    assert all(line in drawn for box in scene.boxes for line in box.lines)


def test_odd_names_are_written_as_they_are(plan, tmp_path) -> None:
    odd = '<a&"b\\n>'
    named = replace(plan, timeline=tuple(replace(m, name=odd) for m in plan.timeline))
    named.render(tmp_path / "plan.svg", level="operators")
    tree = ElementTree.parse(tmp_path / "plan.svg")
    assert odd in {element.text for element in tree.iter()}


def test_suffix_chooses_the_format(plan, tmp_path) -> None:
    for suffix, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".dot", b"digraph step")):
        plan.render(tmp_path / f"plan{suffix}")
        assert (tmp_path / f"plan{suffix}").read_bytes().startswith(start)
    with pytest.raises(FxmemError, match=r"end in \.svg, \.png, \.pdf, \.dot"):
        plan.render(tmp_path / "plan.docx")


def test_a_png_too_long_to_read_is_told(plan, tmp_path, monkeypatch, caplog) -> None:
    plan.render(tmp_path / "plan.png")
    assert caplog.text == ""
    monkeypatch.setattr("fxmem.visualize.graph._LONGEST", 200)
    plan.render(tmp_path / "small.png")
    assert "an .svg can be zoomed into" in caplog.text
    written = (tmp_path / "small.png").read_bytes()
    width, height = (int.from_bytes(written[i : i + 4], "big") for i in (16, 20))
    assert max(width, height) <= 200


def test_without_the_systems_program_the_carried_one_draws(plan, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    (program,) = engine.programs()
    assert "graphviz-pure" in program
    plan.render(tmp_path / "plan.svg")
    assert "<svg" in (tmp_path / "plan.svg").read_text()


def test_a_broken_program_of_the_system_is_passed_over(plan, tmp_path, monkeypatch) -> None:
    broken = tmp_path / "dot"
    broken.write_text("#!/bin/sh\necho no layout >&2\nexit 1\n")
    broken.chmod(0o755)
    real = engine.programs()
    monkeypatch.setattr(engine, "programs", lambda: (str(broken), "/nowhere/dot", *real))
    plan.render(tmp_path / "plan.svg")
    monkeypatch.setattr(engine, "programs", lambda: (str(broken),))
    with pytest.raises(FxmemError, match="graphviz could not write svg: no layout"):
        plan.render(tmp_path / "plan.svg")


def test_without_any_program_the_message_says_what_to_install(plan, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engine, "programs", lambda: ())
    with pytest.raises(FxmemError, match="pip install graphviz-pure"):
        plan.render(tmp_path / "plan.svg")
    plan.render(tmp_path / "plan.dot", level="operators")
    assert "laid out in columns" in (tmp_path / "plan.dot").read_text()


def test_large_parts_are_laid_out_in_columns_and_it_is_told(
    traced: Plan, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(unfolded, "_MOST_RUNS", 2)
    with caplog.at_level(logging.WARNING, "fxmem"):
        scene = scene_of(traced, "operators")
    assert "more than 2 operators are laid out in columns" in caplog.text
    assert any("laid out in columns" in note.text for note in scene.notes)
    assert overlapping([*scene.boxes, *of_notes(scene.notes)]) == []


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_step_is_an_empty_picture(plan, tmp_path, level: str) -> None:
    empty = replace(plan, timeline=(), decisions={}, value_bytes={})
    empty.render(tmp_path / "plan.svg", level=level)
    assert "One training step" in (tmp_path / "plan.svg").read_text()


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_without_a_backward_part_is_drawn(plan, tmp_path, level: str) -> None:
    forward = tuple(m for m in plan.timeline if m.phase == "forward")
    replace(plan, timeline=forward).render(tmp_path / "plan.svg", level=level)
    assert "embedding" in (tmp_path / "plan.svg").read_text()


def test_a_plan_of_an_older_version_is_drawn_as_a_chain(traced: Plan, tmp_path) -> None:
    old = replace(traced, picture=None)
    assert [part.title for part in fold(old, "layers")] == ["the step"]
    old.render(tmp_path / "plan.svg", level="operators")
    assert re.search(r"id=\"run0\"", (tmp_path / "plan.svg").read_text())
