"""Schedules on disk: the second run finds them, and believes nothing that it has not replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import fxmem
from fxmem.files.plan_cache import PlanCache
from fxmem.solvers.remat import RematProblem, RematSolution, check
from tests.cases import make

# Value 0 is not held while 2 runs: it is run again.
PROBLEM = replace(
    RematProblem.from_edges([5, 5, 5, 1], [2, 3, 1, 1], [(0, 1), (1, 2), (0, 3), (2, 3)]), turn=2
)
SEQUENCE = (0, 1, 2, 0, 3)
TOTAL, PEAK = check(PROBLEM, SEQUENCE)


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    cache = PlanCache(PROBLEM, PEAK, "auto", 0, directory=tmp_path)
    cache.keep(RematSolution(SEQUENCE, TOTAL, PEAK, 8, "feasible", "auto"))
    return cache


def test_round_trip(cache: PlanCache) -> None:
    found = cache.find()
    assert found == RematSolution(SEQUENCE, TOTAL, PEAK, 8, "feasible", "auto", PROBLEM.floor)
    assert [p.name for p in cache.path.parent.iterdir()] == [cache.path.name]


def test_everything_that_was_searched_names_the_file(tmp_path: Path) -> None:
    changed = [
        replace(PROBLEM, time=(2, 3, 1, 2)),
        replace(PROBLEM, size=(5, 5, 5, 2)),
        replace(PROBLEM, workspace=(1, 0, 0, 0)),
        replace(PROBLEM, reuse=((), (0,), (), ())),
        replace(PROBLEM, once=frozenset({0})),
        replace(PROBLEM, ordered=(0,)),
        replace(PROBLEM, keep=frozenset({3})),
        replace(PROBLEM, resident_bytes=1),
        replace(PROBLEM, turn=1),
    ]
    paths = {PlanCache(p, PEAK, "auto", 0, directory=tmp_path).path for p in [PROBLEM, *changed]}
    paths |= {PlanCache(PROBLEM, PEAK + 1, "auto", 0, directory=tmp_path).path}
    paths |= {PlanCache(PROBLEM, PEAK, "ilp", 0, directory=tmp_path).path}
    paths |= {PlanCache(PROBLEM, PEAK, "auto", 1, directory=tmp_path).path}
    assert len(paths) == len(changed) + 4
    named = replace(PROBLEM, names=("a", "b", "c", "d"))
    assert PlanCache(named, PEAK, "auto", 0, directory=tmp_path).path in paths


def test_versions_name_the_file(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def path() -> Path:
        return PlanCache(PROBLEM, PEAK, "auto", 0, directory=cache.path.parents[1]).path

    assert path() == cache.path
    monkeypatch.setattr("fxmem.__version__", "99.0")
    assert path() != cache.path
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert path() != cache.path


@pytest.mark.parametrize(
    "row",
    [
        {"sequence": [0, 1, 2, 3], "lower_bound": 7, "solver": "auto"},  # over the limit
        {"sequence": [0, 1, 2], "lower_bound": 8, "solver": "auto"},  # one never runs
        {"sequence": [1, 0, 2, 0, 3], "lower_bound": 8, "solver": "auto"},  # not yet written
        {"sequence": [0, 1, 2, 0, 9], "lower_bound": 8, "solver": "auto"},
        {"sequence": [0, 1, 2, 0, -1], "lower_bound": 8, "solver": "auto"},
        {"sequence": [0, 1, 2, 0, 3.0], "lower_bound": 8, "solver": "auto"},
        {"sequence": [0, 1, 2, 0, True], "lower_bound": 8, "solver": "auto"},
        {"sequence": "01203", "lower_bound": 8, "solver": "auto"},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": 1000, "solver": "auto"},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": -1, "solver": "auto"},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": "8", "solver": "auto"},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": 8, "solver": ["auto"]},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": 8},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": 8, "solver": "auto", "history": [[0.1, 8]]},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": 8, "solver": "auto", "history": 7},
        {"sequence": [0, 1, 2, 0, 3], "lower_bound": 8, "solver": "auto", "code": "import os"},
        [],
        None,
    ],
)
def test_what_does_not_replay_is_passed_over(cache: PlanCache, row: object) -> None:
    cache.path.write_text(json.dumps(row))
    assert cache.find() is None


def test_the_history_of_a_search_is_kept(cache: PlanCache) -> None:
    history = ((0.25, 9, 8), (0.5, 8, 8))
    cache.keep(RematSolution(SEQUENCE, TOTAL, PEAK, 8, "feasible", "auto", history=history))
    assert cache.find().history == history


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"sequence": [1e400]}'])
def test_damaged_file_is_passed_over(cache: PlanCache, data: bytes) -> None:
    cache.path.write_bytes(data)
    assert cache.find() is None


def test_unwritable_folder_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "plans").write_text("")
    cache = PlanCache(PROBLEM, PEAK, directory=tmp_path)
    cache.keep(RematSolution(SEQUENCE, TOTAL, PEAK, 8, "feasible", "auto"))
    assert cache.find() is None


def test_the_oldest_files_go(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fxmem.files.plan_cache._MOST_FILES", 3)
    os.utime(cache.path, (1, 1))
    for seed in range(1, 4):
        other = PlanCache(PROBLEM, PEAK, "auto", seed, directory=cache.path.parents[1])
        other.keep(RematSolution(SEQUENCE, TOTAL, PEAK, 8, "feasible", "auto"))
    assert len(list(cache.path.parent.iterdir())) == 3
    assert cache.find() is None and other.find() is not None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path))
    return tmp_path / "plans"


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def solve(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr("fxmem.scheduling.solve", solve)


def planned(**options: object) -> fxmem.Plan:
    torch._dynamo.reset()
    case = make("no dropout")
    return fxmem.optimize(case.module, 0.8, case.args, time_limit=0.5, **options).plan


def test_a_second_run_does_not_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = planned()
    assert 1 <= len(list(folder.iterdir())) <= 3  # tighter ones too, for an arena to fit
    forbid(monkeypatch)
    # Where blocks lie in the arena is searched anew, for a time: that may differ.
    packed = {"pool": first.pool, "peak_bytes": first.peak_bytes}
    assert replace(planned(), **packed) == first
    with pytest.raises(BackendCompilerFailed, match="searched again"):
        planned(seed=1)


def test_without_cache_nothing_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(cache=False)
    assert not folder.parent.exists() or list(folder.parent.iterdir()) == []
    planned()
    forbid(monkeypatch)
    with pytest.raises(BackendCompilerFailed, match="searched again"):
        planned(cache=False)


def test_a_foreign_file_is_replaced(folder: Path) -> None:
    first = planned()
    paths = list(folder.iterdir())
    for path in paths:
        path.write_text(json.dumps({"sequence": [0], "lower_bound": 0, "solver": "auto"}))
    again = planned()
    assert again.status == first.status and again.peak_bytes <= again.budget_bytes
    assert any(json.loads(path.read_text())["sequence"] != [0] for path in paths)


SCRIPT = """
import time, torch, fxmem
from tests.cases import make
torch.set_num_threads(1)
case, told = make("no dropout"), []
began = time.monotonic()
fxmem.optimize(case.module, 0.8, case.args, time_limit=2.0,
               progress=lambda stage, _: told.append(stage))
print(told.count("measure"), told.count("solve"), time.monotonic() - began)
"""


@pytest.mark.slow
def test_the_second_run_of_a_script_neither_measures_nor_searches(folder: Path) -> None:
    found = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
        )
        found.append([float(number) for number in run.stdout.split()])
    (measured, searched, slow), (again, anew, fast) = found
    assert measured > 0 and searched > 0
    assert again == anew == 0
    assert fast < slow


def test_what_was_interrupted_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path))
    case = make("transformer")
    searched = []

    def interrupt(stage: str, _details: object) -> None:
        if stage == "solve":
            searched.append(stage)
            raise KeyboardInterrupt

    def options(progress):
        return {"time_limit": 20.0, "solver": "anneal", "progress": progress}

    with pytest.warns(RuntimeWarning, match="interrupted"):
        early = fxmem.optimize(case.module, 0.8, case.args, **options(interrupt))
    assert early.plan.peak_bytes <= early.plan.budget_bytes
    assert searched and not list((tmp_path / "plans").glob("*"))
