"""The plan as a value, and on disk."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import fxmem
from fxmem import Keep, Offload, Plan, PlanMismatch, Recompute
from fxmem.arena_plan import ArenaPlan, Request
from fxmem.plan import CATEGORIES, PLAN_VERSION, Moment, Transfer
from tests.cases import make


def small(**changes: object) -> Plan:
    fields: dict = dict(
        budget_bytes=2000,
        peak_bytes=1500,
        resident_bytes=100,
        baseline_peak_bytes=3000,
        seconds=1.2,
        baseline_seconds=1.0,
        lower_bound_seconds=1.1,
        status="feasible",
        solver="auto",
        sequence=("a", "b", "turn", "a", "c"),
        decisions={"a": Recompute(2), "b": Keep(), "x": Offload("cuda:0", "cpu")},
        value_bytes={"a": 1024, "b": 2048, "x": 1},
        timeline=(
            Moment("a", "forward", False, 0.0, 0.5, (100, 0, 0, 10, 0, 5, 7)),
            Moment("a", "backward", True, 0.5, 0.7, (100, 3, 0, 10, 9, 5, 0)),
        ),
        graph_hash="0123456789abcdef",
    )
    return Plan(**{**fields, **changes})


def test_shares() -> None:
    plan = small()
    assert plan.overhead == pytest.approx(0.2)
    assert plan.gap == pytest.approx(1.2 / 1.1 - 1)
    assert small(baseline_seconds=0.0, lower_bound_seconds=0.0).overhead == 0.0
    assert small(lower_bound_seconds=0.0).gap == 0.0


def test_moments() -> None:
    plan = small()
    assert [m.live_bytes for m in plan.timeline] == [122, 127]
    assert plan.peak_moment() is plan.timeline[1]
    assert small(timeline=()).peak_moment() is None
    assert len(CATEGORIES) == len(plan.timeline[0].held)


POOL = ArenaPlan(
    (
        Request("a", "forward", 300, 0, 2, 0),
        Request("b", "forward", 100, 1, 4, None),
        Request("c", "backward", 100, 3, 4, 0),
    ),
    arena_bytes=300,
    live_bytes=300,
    segment_bytes=64,
    peak_bytes=400,
    outside_bytes=100,
)


def test_summary() -> None:
    assert small().summary().splitlines() == [
        "budget      2.0 KiB",
        "peak        1.5 KiB predicted, 2.9 KiB with everything kept",
        "residents   100 B",
        "kept        1 values, 2.0 KiB",
        "recomputed  1 values, 1.0 KiB, 2 runs",
        "time        1200.0 ms predicted, +20.0% over 1000.0 ms",
        "arena       none",
        "quality     feasible by auto, at most 9.09% above the bound",
    ]
    assert (
        "arena       300 B, 1.000 of what lives at once; 80.0% of the bytes asked for"
        in small(pool=POOL).summary().splitlines()
    )
    assert small(budget_bytes=None).summary().startswith("budget      none\n")


def test_round_trip(tmp_path: Path) -> None:
    for plan in (small(), small(budget_bytes=None, pool=POOL, seed=3)):
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan


def test_round_trip_of_a_real_plan(tmp_path: Path) -> None:
    case = make("convnet")
    plan = fxmem.optimize(case.module, 0.93, case.args, time_limit=0.3).plan
    plan.save(str(tmp_path / "plan.json"))
    assert Plan.load(str(tmp_path / "plan.json")) == plan
    assert {type(d) for d in plan.decisions.values()} <= {Keep, Recompute}
    assert set(plan.decisions) == set(plan.value_bytes) <= set(plan.sequence)


def test_a_plan_is_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().seconds = 1.0  # type: ignore[misc]


def damage_missing(row: dict) -> None:
    del row["peak_bytes"]


def damage_extra(row: dict) -> None:
    row["surprise"] = 1


def damage_decision(row: dict) -> None:
    row["decisions"]["a"] = {"kind": "Sell"}


def damage_decision_fields(row: dict) -> None:
    row["decisions"]["a"] = {"kind": "Keep", "times": 3}


def damage_timeline(row: dict) -> None:
    row["timeline"][0] = row["timeline"][0][:3]


def damage_version(row: dict) -> None:
    row["version"] = "one"


def damage_sequence(row: dict) -> None:
    row["sequence"] = None


def damage_bytes(row: dict) -> None:
    row["budget_bytes"] = "2000"


def damage_fraction(row: dict) -> None:
    row["peak_bytes"] = 15.5


def damage_sign(row: dict) -> None:
    row["resident_bytes"] = -1


def damage_seconds(row: dict) -> None:
    row["seconds"] = float("inf")


def damage_value_bytes(row: dict) -> None:
    row["value_bytes"] = [["a", 1]]


def damage_names(row: dict) -> None:
    row["sequence"] = ["a", 3]


def damage_kind(row: dict) -> None:
    row["decisions"]["a"] = {"kind": ["Keep"]}


def damage_times(row: dict) -> None:
    row["decisions"]["a"] = {"kind": "Recompute", "times": "two"}


def damage_held(row: dict) -> None:
    row["timeline"][0][-1] = [1, 2]


@pytest.mark.parametrize(
    "damage",
    [
        damage_bytes,
        damage_fraction,
        damage_sign,
        damage_seconds,
        damage_value_bytes,
        damage_names,
        damage_kind,
        damage_times,
        damage_held,
        damage_missing,
        damage_extra,
        damage_decision,
        damage_decision_fields,
        damage_timeline,
        damage_version,
        damage_sequence,
    ],
)
def test_damaged_file(damage, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    small().save(path)
    row = json.loads(path.read_text())
    damage(row)
    path.write_text(json.dumps(row))
    with pytest.raises(PlanMismatch, match="is no plan"):
        Plan.load(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"plan"', "{}", "\x00", "[" * 100_000, "1e400"]
)
def test_no_plan_at_all(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanMismatch, match=r"plan\.json is no plan"):
        Plan.load(path)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(PlanMismatch):
        Plan.load(path)


def test_a_save_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    small().save(path)

    def full(*_paths: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        small(seed=5).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert Plan.load(path) == small()


def test_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    small().save(path)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(PlanMismatch):
        Plan.load(path)


def test_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    small(version=PLAN_VERSION + 1).save(path)
    with pytest.raises(PlanMismatch, match="newer fxmem") as caught:
        Plan.load(path)
    assert "Make the plan anew" in str(caught.value)


def test_missing_file_is_not_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "nothing.json")


def test_a_plan_of_an_older_version(tmp_path: Path) -> None:
    """Transfers had no tolls up to version 4."""
    path = tmp_path / "plan.json"
    transfer = Transfer("v", "/disk", "out", 8, 0, 1, 0.0, 0.5, 0.1, 0.2)
    small(transfers=(transfer,)).save(path)
    row = json.loads(path.read_text())
    row["transfers"] = [moved[:-1] for moved in row["transfers"]]
    path.write_text(json.dumps({**row, "version": 4}))
    assert Plan.load(path).transfers == (dataclasses.replace(transfer, toll=0.0),)
