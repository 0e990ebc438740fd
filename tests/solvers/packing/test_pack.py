"""`pack`, the plain orders, and what they promise."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from fxmem.solvers.packing import PackingProblem, check, pack, warm_up
from fxmem.solvers.packing.__main__ import app
from fxmem.solvers.packing.arrays import Buffers
from fxmem.solvers.packing.greedy import each_order, fill, greedy, orders
from fxmem.solvers.packing.skyline import lowest_first
from tests.clock import within
from tests.solvers.packing.packing_cases import least_height, problems, training_step, uniform


@pytest.fixture(autouse=True, scope="module")
def kernels() -> None:
    warm_up()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(problems())
def test_the_lowest_arena_and_its_proof(problem: PackingProblem) -> None:
    least = least_height(problem)
    answer = pack(problem, time_limit=20)
    assert check(problem, answer.offset) == answer.height
    assert (answer.height, answer.lower_bound, answer.status) == (least, least, "optimal")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_a_capacity_is_met_or_proved_too_small(problem: PackingProblem) -> None:
    least = least_height(problem)
    answer = pack(problem, least, time_limit=20)
    assert answer.status in ("optimal", "feasible")
    assert check(problem, answer.offset) == answer.height == least
    if least:
        below = pack(problem, least - 1, time_limit=20)
        assert below.status == "infeasible"
        assert least - 1 < below.lower_bound <= least


@settings(max_examples=80, deadline=None, derandomize=True)
@given(problems(most=14))
def test_every_plain_order_is_a_packing(problem: PackingProblem) -> None:
    buffers = Buffers.of(problem)
    if buffers is None:
        return
    for found in each_order(buffers):
        assert check(problem, buffers.offsets(found.placed)) == found.height


def first_fit(problem: PackingProblem, order: list[int], tightest: bool) -> list[int]:
    """First or best fit as plainly as can be."""
    offset = [-1] * problem.count
    for i in order:
        near = sorted(
            (offset[j], offset[j] + problem.size[j])
            for j in range(problem.count)
            if offset[j] >= 0
            and problem.lower[j] < problem.upper[i]
            and problem.lower[i] < problem.upper[j]
        )
        free, gaps = 0, []
        for bottom, top in near:
            if bottom - free >= problem.size[i]:
                gaps.append((bottom - free if tightest else 0, free))
            free = max(free, top)
        offset[i] = min(gaps)[1] if gaps else free
    return offset


@pytest.mark.parametrize("tightest", [False, True])
@pytest.mark.parametrize("count", [30, 300])  # without blocks and with
def test_gaps_are_those_of_plain_first_and_best_fit(count: int, tightest: bool) -> None:
    for seed, longest in ((0, 5), (1, count // 2), (2, 40)):
        problem = uniform(count, seed, longest)
        buffers = Buffers.of(problem)
        assert buffers is not None
        free = np.full(count, -1, np.int64)
        for order in orders(buffers).values():
            placed = fill(buffers, order, free, tightest)
            assert placed is not None
            assert (placed * buffers.unit).tolist() == first_fit(problem, order.tolist(), tightest)


def test_lowest_first_takes_who_can_lie_lowest() -> None:
    problem = uniform(60, 4, 20)
    buffers = Buffers.of(problem)
    assert buffers is not None
    at, who = buffers.near
    for order in orders(buffers).values():
        rank, offset = np.argsort(order), np.full(60, -1, np.int64)
        for _ in range(60):
            least = [
                max((offset[j] + buffers.size[j] for j in who[at[i] : at[i + 1]] if offset[j] >= 0),
                    default=0)
                for i in range(60)
            ]  # fmt: skip
            i = min((i for i in range(60) if offset[i] < 0), key=lambda i: (least[i], rank[i]))
            offset[i] = least[i]
        found = lowest_first(buffers, order)
        assert found is not None
        assert (found == offset).all()


@pytest.mark.parametrize("problem", [uniform(400, 7), training_step(1_500, 7)])
def test_never_worse_than_the_best_of_the_plain_orders(problem: PackingProblem) -> None:
    buffers = Buffers.of(problem)
    assert buffers is not None
    best = min(found.height for found in each_order(buffers))
    assert greedy(buffers).height == best
    answer = pack(problem, time_limit=0.5)
    assert check(problem, answer.offset) == answer.height <= best


def test_the_time_limit_is_kept_and_a_packing_is_there_in_any_case() -> None:
    problem = uniform(1_200, 5)
    for limit in (0.0, 0.5):
        answer = within(limit + 1.0, partial(pack, problem, time_limit=limit))
        assert check(problem, answer.offset) == answer.height
    tight = pack(problem, problem.lower_bound, time_limit=0.0)
    assert tight.status == "unknown"
    assert check(problem, tight.offset) == tight.height > problem.lower_bound
    assert pack(problem, tight.height, time_limit=0.0).status == "feasible"


def test_nothing_to_place() -> None:
    assert pack(PackingProblem([], [], [])).status == "optimal"
    fixed = pack(PackingProblem([0, 0], [1, 1], [4, 0], 1, [8, -1]))
    assert (fixed.offset, fixed.height, fixed.status) == ((8, 0), 12, "optimal")
    assert pack(PackingProblem([0], [1], [4], 1, [8]), capacity=11).status == "infeasible"


def test_fixed_buffers_stay_and_alignment_holds_among_many() -> None:
    base = training_step(400, 1)
    given = [-1] * base.count
    given[0], given[5] = 64 * 100, 64 * 90_000
    problem = PackingProblem(base.lower, base.upper, base.size, 64, given)
    answer = pack(problem, time_limit=1)
    assert check(problem, answer.offset) == answer.height
    assert (answer.offset[0], answer.offset[5]) == (6_400, 5_760_000)


def test_plain_orders_load_no_search() -> None:
    code = (
        "from fxmem.solvers.packing import *\n"
        "from fxmem.solvers.packing import explore\n"
        "answer = pack(PackingProblem([0, 1], [2, 3], [8, 8], 64))\n"
        "assert answer.status == 'optimal'\n"
        "assert not explore.explore.signatures, 'the search was compiled'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def table(folder: Path, name: str, problem: PackingProblem) -> None:
    with open(folder / name, "w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["id", "lower", "upper", "size"])
        for row in zip(problem.lower, problem.upper, problem.size, strict=True):
            rows.writerow(["x", *row])


def test_command_line(tmp_path: Path) -> None:
    table(tmp_path, "A.10.csv", PackingProblem([0, 1, 2], [2, 3, 4], [5, 4, 5]))
    table(tmp_path, "B.8.csv", PackingProblem([0, 1, 2], [2, 3, 4], [5, 4, 5]))
    table(tmp_path, "C.csv", PackingProblem([0, 1, 2], [2, 3, 4], [5, 4, 5]))
    run = CliRunner().invoke
    out = run(app, ["bench", str(tmp_path)]).output
    assert "| A.10 | 3 | 10 | 9 | 9 | 1.0000 | optimal |" in out
    assert "| B.8 | 3 | 8 | – | 9 | – | infeasible |" in out
    assert "| C | 3 | – | 9 | 9 | 1.0000 | optimal |" in out
    assert "loading or compiling kernels" in out
    as_json = run(app, ["bench", str(tmp_path), "--lowest", "--only", "B", "--json"])
    assert json.loads(as_json.output)[0]["height"] == 9
    assert run(app, ["bench", str(tmp_path / "missing")]).exit_code == 2
    for nothing in ([str(tmp_path / "none")], [str(tmp_path), "--only", "large"]):
        (tmp_path / "none").mkdir(exist_ok=True)
        empty = run(app, ["bench", *nothing])
        assert empty.exit_code == 2
        assert "holds no" in " ".join(empty.output.replace("│", " ").split())  # it is wrapped
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    wrong = run(app, ["bench", str(tmp_path), "--only", "bad"])
    assert wrong.exit_code == 1
    assert "bad.csv" in wrong.output.replace("\n", "")
