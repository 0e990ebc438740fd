"""Schedules with transfers on disk: found again, and believed only when they replay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fxmem
from fxmem.files.move_cache import MoveCache
from fxmem.solvers.remat import RematProblem
from fxmem.solvers.transfer import Action, Tier, TransferProblem, TransferSolution, check
from tests.cases import make

REMAT = replace(
    RematProblem.from_edges([5, 5, 5, 1], [2, 3, 1, 1], [(0, 1), (1, 2), (0, 3), (2, 3)]), turn=2
)
PROBLEM = TransferProblem(REMAT, (Tier("disk", 10**9, 10**9),), frozenset({0}))
ACTIONS = tuple(
    Action(*a)
    for a in [
        ("run", 0),
        ("out", 0),
        ("run", 1),
        ("out_done", 0),
        ("run", 2),
        ("in", 0),
        ("in_done", 0),
        ("run", 3),
    ]
)
REPLAY = check(PROBLEM, ACTIONS)
SOLUTION = TransferSolution(
    ACTIONS, REPLAY.makespan, REPLAY.peak, REMAT.base_time, "feasible", "exact", REPLAY.peak
)


@pytest.fixture
def cache(tmp_path: Path) -> MoveCache:
    cache = MoveCache(PROBLEM, REPLAY.peak, "auto", 0, directory=tmp_path)
    cache.keep(SOLUTION)
    return cache


def test_round_trip(cache: MoveCache) -> None:
    assert cache.find() == SOLUTION
    assert [p.name for p in cache.path.parent.iterdir()] == [cache.path.name]


def test_everything_that_was_searched_names_the_file(tmp_path: Path) -> None:
    changed = [
        replace(PROBLEM, remat=replace(REMAT, time=(2, 3, 1, 2))),
        replace(PROBLEM, tiers=(Tier("disk", 10**9, 10**8),)),
        replace(PROBLEM, tiers=(Tier("other", 10**9, 10**9),)),
        replace(PROBLEM, movable=frozenset({0, 1})),
        replace(PROBLEM, movable=frozenset()),
    ]
    paths = {MoveCache(p, REPLAY.peak, 0, directory=tmp_path).path for p in [PROBLEM, *changed]}
    paths |= {MoveCache(PROBLEM, REPLAY.peak + 1, 0, directory=tmp_path).path}
    paths |= {MoveCache(PROBLEM, REPLAY.peak, 1, directory=tmp_path).path}
    assert len(paths) == len(changed) + 3


def test_free_bytes_do_not_name_the_file_but_must_suffice(cache: MoveCache, tmp_path: Path) -> None:
    for capacity, found in [(4, None), (5, SOLUTION)]:
        problem = replace(PROBLEM, tiers=(replace(PROBLEM.tiers[0], capacity=capacity),))
        other = MoveCache(problem, REPLAY.peak, "auto", 0, directory=tmp_path)
        assert other.path == cache.path and other.find() == found


ROW = {"actions": [list(a) for a in ACTIONS], "lower_bound": REMAT.base_time, "solver": "exact"}


@pytest.mark.parametrize(
    "changed",
    [
        {"actions": [["run", v, 0] for v in (0, 1, 2, 3)]},  # over the limit
        {"actions": ROW["actions"][:-1]},  # one never runs
        {"actions": [["run", 9, 0], *ROW["actions"]]},
        {"actions": [["run", -1, 0], *ROW["actions"]]},
        {"actions": [["out", 1, 0], *ROW["actions"]]},
        {"actions": [["out", 0, 1], *ROW["actions"]]},
        {"actions": [["walk", 0, 0], *ROW["actions"]]},
        {"actions": [["run", 0], *ROW["actions"][1:]]},
        {"actions": [["run", 0.0, 0], *ROW["actions"][1:]]},
        {"actions": [["run", True, 0], *ROW["actions"][1:]]},
        {"actions": [[["run"], 0, 0], *ROW["actions"][1:]]},
        {"actions": "run"},
        {"lower_bound": REPLAY.makespan + 1},
        {"lower_bound": -1},
        {"lower_bound": "1"},
        {"solver": None},
        {"code": "import os"},
    ],
)
def test_what_does_not_replay_is_passed_over(cache: MoveCache, changed: dict) -> None:
    cache.path.write_text(json.dumps(ROW))
    assert cache.find() == SOLUTION
    cache.path.write_text(json.dumps({**ROW, **changed}))
    assert cache.find() is None


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff\xfe"])
def test_damaged_file_is_passed_over(cache: MoveCache, data: bytes) -> None:
    cache.path.write_bytes(data)
    assert cache.find() is None


def test_a_second_run_does_not_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path / "cache"))

    def planned() -> fxmem.Plan:
        torch._dynamo.reset()
        case = make("transformer")
        fitted = fxmem.optimize(
            case.module, 0.8, case.args, offload=tmp_path / "tier", time_limit=0.5
        )
        return fitted.plan

    (tmp_path / "tier").mkdir()
    first = planned()
    monkeypatch.setattr("fxmem.moving.solve", None)  # a call of it would raise
    again = planned()
    assert again.sequence == first.sequence and again.transfers == first.transfers
    assert again.peak_bytes <= again.budget_bytes
