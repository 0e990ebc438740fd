"""Solvers and budgets side by side, from one trace."""

from __future__ import annotations

import copy
import json
from itertools import product

import pytest
import torch
from rich.console import Console
from torch import nn

import fxmem
from tests.cases import make
from tests.modules import Outside

BUDGETS = (None, 0.9, "1KiB")
SOLVERS = ("auto", "greedy", "sqrt")


@pytest.fixture(scope="module")
def compared() -> fxmem.Comparison:
    torch.set_num_threads(1)  # as in each test; costs are kept by number of threads
    case = make("transformer")
    return fxmem.compare(case.module, BUDGETS, case.args, SOLVERS, time_limit=1)


def test_a_row_for_every_solver_on_every_budget(compared):
    asked = [(fxmem.Budget.parse(b), s) for b, s in product(BUDGETS, SOLVERS)]
    assert [(row.budget, row.solver) for row in compared.rows] == asked


def test_rows_are_the_plans_that_plan_makes(compared):
    case = make("transformer")
    for row in compared.rows[:6]:
        alone = fxmem.plan(case.module, row.budget, case.args, solver=row.solver, time_limit=1)
        assert row.plan.graph_hash == alone.graph_hash
        assert (row.plan.budget_bytes, row.plan.resident_bytes) == (
            alone.budget_bytes,
            alone.resident_bytes,
        )
        assert compared.baseline_peak_bytes == alone.baseline_peak_bytes
        if row.solver != "auto":  # a search with a time limit need not end alike
            assert (row.plan.sequence, row.plan.seconds) == (alone.sequence, alone.seconds)


def test_what_fits_nowhere_has_no_plan(compared):
    for row in compared.rows[6:]:
        assert (row.plan, row.status, row.budget_bytes) == (None, "not found", 1024)
        assert row.to_row()["peak_bytes"] is None


def test_each_solver_answers_for_itself_whatever_others_found_before():
    case = make("transformer")
    found = fxmem.compare(case.module, [0.8], case.args, ["auto", "none", "auto"], time_limit=1)
    assert [row.plan is None for row in found.rows] == [False, True, False]


def test_table_in_markdown_json_and_terminal(compared):
    lines = compared.to_markdown().splitlines()
    assert len(lines) == 2 + len(compared.rows)
    assert {line.count("|") for line in lines} == {8}
    rows = json.loads(json.dumps(compared.to_rows()))
    assert [r["solver"] for r in rows] == list(SOLVERS) * 3
    assert rows[0]["budget"] == "none" and rows[3]["budget"].startswith("90% (")
    console = Console(width=140, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(compared)
    assert all(solver in shown.get() for solver in SOLVERS)


@pytest.mark.parametrize("keywords", [pytest.param(False, marks=pytest.mark.slow), True])
def test_measured_beside_and_the_module_left_alone(keywords):
    case = make("mlp")
    module = case.module
    before = copy.deepcopy(module.state_dict())
    inputs = dict(zip("xy", case.args, strict=True)) if keywords else case.args
    found = fxmem.compare(
        module, [0.95, 10], inputs, ["auto"], measure=True, optimizer="adamw", time_limit=1
    )
    fits, tight = found.rows
    assert fits.plan.peak_bytes == fits.measured.peak_bytes <= fits.budget_bytes
    assert fits.measured.seconds > 0 and tight.measured is None
    assert (
        found.eager.peak_bytes
        > found.eager.resident_bytes
        > fxmem.plan(module, None, inputs).resident_bytes
    )  # the optimizer's state is in it
    assert {line.count("|") for line in found.to_markdown().splitlines()} == {10}
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_for_a_device_that_is_not_here():
    with torch.device("meta"):
        module, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)), torch.ones(8, 64)
    found = fxmem.compare(module, [None], (x,), ["none"], device="h100")
    assert found.rows[0].plan.seconds == found.baseline_seconds > 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"solvers": ["magic"]}, "magic"),
        ({"solvers": []}, "nothing to compare"),
        ({"budgets": []}, "nothing to compare"),
        ({"measure": True, "device": "h100"}, "leave out the device"),
    ],
)
def test_bad_requests(changed, said):
    asked = {"budgets": [None], "solvers": ["none"], **changed}
    with pytest.raises(fxmem.FxmemError, match=said):
        fxmem.compare(Outside(), asked.pop("budgets"), (torch.randn(2, 64),), **asked)


def test_a_page_of_all_plans(compared, tmp_path):
    pytest.importorskip("plotly")
    compared.report(tmp_path / "frontier.html")
    page = (tmp_path / "frontier.html").read_text()
    assert all(solver in page for solver in SOLVERS)
