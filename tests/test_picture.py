"""What pictures are drawn from: the graph by module, lifetimes, the solver's progress."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fxmem
from fxmem import Plan, PlanMismatch
from fxmem.picture import PHASES, module_of
from fxmem.plan import CATEGORIES
from tests.modules import Blocks


@pytest.fixture(scope="module")
def plan() -> Plan:
    module, x = Blocks(), torch.randn(256, 16, requires_grad=True)
    return fxmem.optimize(module, 0.8, (x,), optimizer="adamw", time_limit=0.5, cache=False).plan


def test_operators_stand_in_their_modules_forward_and_backward(plan: Plan) -> None:
    operators = plan.picture.operators
    modules = {phase: {o.module for o in operators if o.phase == phase} for phase in PHASES}
    inner = {f"blocks.{i}/{part}" for i in range(3) for part in ("up", "down")}
    blocks = {f"blocks.{i}" for i in range(3)}
    assert modules["forward"] == inner | blocks | {""}
    # Sums of gradients have no module of their own, and stand in that of what they sum.
    assert modules["backward"] == inner | blocks | {""}
    assert {o.target for o in operators if not o.module and o.phase == "forward"} == {
        "aten.pow.Tensor_Scalar",
        "aten.mean.default",
    }


def test_operators_carry_bytes_seconds_and_edges(plan: Plan) -> None:
    operators = plan.picture.operators
    named = {o.name: o for o in operators}
    assert set(named) == set(plan.sequence) - {"turn"}
    gelu = named["gelu"]
    assert gelu.bytes == 256 * 64 * 4
    assert [operators[i].name for i in gelu.inputs] == ["addmm"]
    assert sum(o.seconds for o in operators) == pytest.approx(plan.baseline_seconds)
    assert all(i < number for number, o in enumerate(operators) for i in o.inputs)


def test_lifetimes_sum_to_the_timeline(plan: Plan) -> None:
    held = [Counter() for _ in plan.timeline]
    for life in plan.picture.lifetimes:
        for position in range(life.first, life.last + 1):
            held[position][life.category] += life.bytes
    for moment, found in zip(plan.timeline, held, strict=True):
        given = dict(zip(CATEGORIES, moment.held, strict=True))
        del given["resident"], given["workspace"]
        assert {c: b for c, b in given.items() if b} == dict(found)
    names = {life.name for life in plan.picture.lifetimes}
    assert names <= set(plan.sequence) | {"tangents_1"}


def test_residents_by_kind(plan: Plan) -> None:
    parameters = 3 * (2 * 16 * 64 + 16 + 64) * 4
    held = plan.picture.residents
    assert held["parameters"] == parameters
    assert held["inputs"] == 256 * 16 * 4
    assert held["optimizer"] >= 2 * parameters
    assert sum(held.values()) == plan.resident_bytes


def test_progress_ends_at_the_plan(plan: Plan) -> None:
    progress = plan.picture.progress
    assert progress[-1].seconds == plan.seconds
    assert progress[-1].bound_seconds == plan.lower_bound_seconds
    assert [p.after for p in progress] == sorted(p.after for p in progress)
    assert [p.seconds for p in progress] == sorted((p.seconds for p in progress), reverse=True)


def test_round_trip(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    found = Plan.load(tmp_path / "plan.json").picture
    assert found == plan.picture
    assert found.progress == plan.picture.progress


def test_a_plan_of_the_first_version_has_no_picture(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    row = json.loads(path.read_text())
    del row["picture"]
    path.write_text(json.dumps({**row, "version": 1}))
    assert Plan.load(path).picture is None


def damage_module(row: dict) -> None:
    row["operators"][0][2] = len(row["modules"])


def damage_edge(row: dict) -> None:
    row["operators"][0][6] = [len(row["operators"])]


def damage_phase(row: dict) -> None:
    row["operators"][0][3] = "sideways"


def damage_category(row: dict) -> None:
    row["lifetimes"][0][2] = "stolen"


def damage_progress(row: dict) -> None:
    row["progress"] = [[1.0, 2.0]]


def damage_end(row: dict) -> None:
    row["lifetimes"][0][4] = 10**9


@pytest.mark.parametrize(
    "damage",
    [damage_module, damage_edge, damage_phase, damage_category, damage_progress, damage_end],
)
def test_a_damaged_picture_is_refused(damage, plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan.save(path)
    row = json.loads(path.read_text())
    damage(row["picture"])
    path.write_text(json.dumps(row))
    with pytest.raises(PlanMismatch, match="is no plan"):
        Plan.load(path)


@pytest.mark.parametrize(
    ("paths", "module"),
    [
        (["L['self'].model", "L['self'].model.h.0"], "model/h.0"),
        (["L['self']._modules['0']", "L['self']._modules['0'].fc"], "0/fc"),
        (["L['self']", "L['self'].layers[2]"], "layers.2"),
        (["L['self'].model.__dict__['_modules']['down'][1]"], "model.down.1"),
        ([], ""),
    ],
)
def test_names_of_modules(paths: list[str], module: str) -> None:
    node = SimpleNamespace(meta={"nn_module_stack": {str(i): (p, "") for i, p in enumerate(paths)}})
    assert module_of(node) == module
