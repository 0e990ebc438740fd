"""Traces for other viewers: they hold the plan's bytes, and those viewers' own code reads them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch.cuda._memory_viz as memory_viz

from fxmem import FxmemError, MeasuredStep
from fxmem.visualize.traces import whole_lives


def events(plan, tmp_path, measured=None) -> list[dict]:
    plan.trace(tmp_path / "plan.json", measured)
    return json.loads((tmp_path / "plan.json").read_text())["traceEvents"]


def test_chrome_trace_has_a_slice_for_each_run(traced, tmp_path):
    slices = [e for e in events(traced, tmp_path) if e["ph"] == "X"]
    assert [e["name"] for e in slices] == [m.name for m in traced.timeline]
    assert {e["cat"] for e in slices} == {"forward", "backward", "again"}
    assert {e["tid"] for e in slices} == {1, 2, 3}
    last = slices[-1]
    assert last["ts"] + last["dur"] == pytest.approx(sum(m.seconds for m in traced.timeline) * 1e6)
    assert "blocks.0.up" in {e["args"]["module"] for e in slices}


def test_chrome_counters_are_the_timeline(traced, tmp_path):
    found = events(traced, tmp_path)
    by_name = {}
    for event in found:
        if event["ph"] == "C":
            by_name.setdefault(event["name"], []).append(event["args"])
    assert [c["held"] for c in by_name["memory"]] == [m.live_bytes for m in traced.timeline]
    assert [sum(c.values()) for c in by_name["memory by category"]] == [
        m.live_bytes for m in traced.timeline
    ]
    assert {c["bytes"] for c in by_name["budget"]} == {traced.budget_bytes}
    assert "measured memory" not in by_name


def test_chrome_trace_of_a_measured_step(traced, tmp_path):
    step = MeasuredStep(90, 30, 0.1, ((0.0, 30), (0.05, 90)))
    found = [e for e in events(traced, tmp_path, step) if e["name"] == "measured memory"]
    assert [(e["ts"], e["args"]["held"]) for e in found] == [(0.0, 30), (pytest.approx(5e4), 90)]


def read_snapshot(plan, tmp_path) -> dict:
    plan.trace(tmp_path / "plan.pickle")
    return pickle.loads((tmp_path / "plan.pickle").read_bytes())


def test_snapshot_peaks_where_the_plan_does(traced, tmp_path):
    data = read_snapshot(traced, tmp_path)
    live, held, peak = {}, 0, 0
    for entry in data["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
        held = sum(live.values())
        peak = max(peak, held)
    assert peak == max(m.live_bytes for m in traced.timeline)
    assert held == sum(segment["total_size"] for segment in data["segments"])


def test_torch_reads_the_snapshot(traced, tmp_path):
    data = read_snapshot(traced, tmp_path)
    told = memory_viz.trace(data)
    assert told.startswith("Device 0 ---")
    assert f"{len(data['device_traces'][0])} entries" in told
    assert memory_viz.segsum(data)
    left = memory_viz.filter_alloc_free_pairs(data)["device_traces"][0]
    assert {e["frames"][0]["name"] for e in left} >= {"parameters (resident)"}
    assert len(left) == len(data["segments"])
    for page in (memory_viz.trace_plot(data), memory_viz.segment_plot(data)):
        assert "snapshot.pickle" in page


def test_what_lives_on_over_the_turn_is_one_block(traced):
    turn = next(i for i, m in enumerate(traced.timeline) if m.phase == "backward")
    lives = whole_lives(traced)
    over = {life.name for life in lives if life.first < turn <= life.last}
    assert over >= {life.name for life in traced.picture.lifetimes if life.category == "kept"}
    held = [0] * len(traced.timeline)
    for life in lives:
        for position in range(life.first, life.last + 1):
            held[position] += life.bytes
    assert held == [m.live_bytes - m.held[0] - m.held[-1] for m in traced.timeline]


def test_what_cannot_be_traced_is_refused(traced, tmp_path):
    with pytest.raises(FxmemError, match=r"end in \.json, \.pickle, \.pkl"):
        traced.trace(tmp_path / "plan.txt")
    with pytest.raises(FxmemError, match="make it anew"):
        replace(traced, picture=None).trace(tmp_path / "plan.pickle")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_an_older_version_still_has_a_chrome_trace(traced, tmp_path):
    assert len(events(replace(traced, picture=None), tmp_path)) > len(traced.timeline)
