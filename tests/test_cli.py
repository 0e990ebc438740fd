"""The `fxmem` command: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fxmem import InfeasibleBudget, MeasuredStep, Plan
from fxmem import cli as commands
from fxmem.cli import app
from fxmem.demo import DemoResult, Trained
from tests.cases import make

FACTORY = """
import torch

def tiny():
    body = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(),
    )
    return body, (torch.randn(256, 64),)

def wrong():
    return torch.nn.Linear(2, 2)

constant = 3
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch) -> Path:
    """A working directory of its own, with a module of factories."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    (tmp_path / "factories.py").write_text(FACTORY)
    return tmp_path


def run(*args: str):
    return CliRunner().invoke(app, list(args), catch_exceptions=False)


def test_help_lists_the_commands():
    result = run("--help")
    assert result.exit_code == 0
    for command in ("plan", "train", "demo"):
        assert command in result.output


def test_plan_prints_saves_and_draws(workplace):
    pytest.importorskip("matplotlib")
    result = run(
        "plan", "factories:tiny", "-b", "0.95", "--time-limit", "2",
        "--save", "made/plan.json", "--plot", "made/memory.svg",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    plan = Plan.load(workplace / "made/plan.json")
    assert plan.summary() in result.stdout
    assert plan.peak_bytes <= plan.budget_bytes < plan.baseline_peak_bytes
    assert "wrote made/plan.json" in result.stdout.replace("\\", "/")
    assert "</svg>" in (workplace / "made/memory.svg").read_text()


def test_plan_as_json_is_json_alone(workplace):
    result = run("plan", "factories:tiny", "--json", "--save", "plan.json", "--time-limit", "2")
    assert result.exit_code == 0
    row, plan = json.loads(result.stdout), Plan.load("plan.json")
    assert row["budget_bytes"] is None
    assert row["peak_bytes"] == plan.peak_bytes
    assert row["overhead"] == plan.overhead
    assert row["recomputations"] == 0
    assert "timeline" not in row


def test_train_measures_a_step_within_its_budget():
    result = run("train", "factories:tiny", "-b", "0.95", "--steps", "2", "--time-limit", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("loss") == 2
    assert "measured, budget" in result.stdout


def test_train_takes_inputs_by_name_and_charges_the_optimizer():
    result = run("train", "tests.factories:by_name", "-b", "0.95", "--optimizer", "adamw", "--json",
                 "--time-limit", "2")  # fmt: skip
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    assert [step["step"] for step in row["steps"]] == [1, 2, 3]
    assert row["steps"][2]["loss"] < row["steps"][0]["loss"]
    weights = sum(p.numel() * 4 for p in make("mlp").module.parameters())
    assert 4 * weights < row["measured_peak_bytes"] <= row["budget_bytes"]


def test_an_infeasible_budget_is_one_message_and_status_1():
    result = run("plan", "factories:tiny", "-b", "1KiB", "--time-limit", "2")
    assert result.exit_code == 1
    assert "fxmem: no plan fits the budget of 1.0 KiB" in result.stderr
    assert "Traceback" not in result.output


def test_any_error_of_ours_is_one_message_and_status_1(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise InfeasibleBudget(1, 2)

    monkeypatch.setattr(commands, "optimize", refuse)
    result = run("train", "factories:tiny", "-b", "1")
    assert result.exit_code == 1
    assert result.stderr.startswith("fxmem: no plan fits")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("plan", "factories.tiny"), "package.module:factory"),
        (("plan", "nowhere:tiny"), "nowhere"),
        (("plan", "factories:missing"), "missing"),
        (("plan", "factories:wrong"), "must return"),
        (("plan", "factories:constant"), "must return"),
        (("plan", "factories:tiny", "-b", "6 G"), "ambiguous"),
        (("plan", "factories:tiny", "-b", "1.5"), "share"),
        (("plan",), "MODULE:FACTORY"),
        (("train", "factories:tiny", "--steps", "0"), "steps"),
        (("train", "factories:tiny", "--optimizer", "magic"), "magic"),
        (("demo", "--share", "2"), "share"),
        (("demo", "--steps", "1"), "steps"),
        (("dance",), "dance"),
    ],
)
def test_wrong_usage_is_status_2(args, said):
    result = run(*args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_picture_that_cannot_be_written_is_told(workplace):
    (workplace / "file").write_text("")
    result = run("plan", "factories:tiny", "--time-limit", "1", "--save", "file/plan.json")
    assert result.exit_code == 1
    assert "cannot write" in result.stderr


def test_the_demo_keeps_its_budget_and_its_losses(workplace):
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    result = run(
        "demo", "--out", "seen", "--steps", "2", "--share", "0.9",
        "--layers", "1", "--width", "48", "--time-limit", "2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "kept in all 1 recorded steps" in result.stdout
    assert "largest difference 0 over all steps" in result.stdout
    assert (workplace / "seen/memory.png").read_bytes().startswith(b"\x89PNG")
    assert Plan.load(workplace / "seen/plan.json").peak_bytes > 0
    assert result.stderr == ""  # quiet without a terminal


def test_the_demo_fails_when_the_budget_is_not_kept(monkeypatch):
    pytest.importorskip("matplotlib")
    plan = Plan(
        budget_bytes=100, peak_bytes=90, resident_bytes=10, baseline_peak_bytes=200,
        seconds=1.0, baseline_seconds=1.0, lower_bound_seconds=1.0, status="feasible",
        solver="auto", sequence=("turn",), decisions={}, value_bytes={}, timeline=(),
        graph_hash="0",
    )  # fmt: skip

    def trained(peak: int) -> Trained:
        module = torch.nn.Linear(1, 1)
        step = MeasuredStep(peak, 10, 1.0, ((0.0, 10), (1.0, peak)))
        optimizer = torch.optim.SGD(module.parameters())
        return Trained(module, module, optimizer, [2.0, 1.0], [1.0], [step])

    result = DemoResult(trained(200), trained(101), 100, plan, 0.0, 0.0)
    monkeypatch.setattr(commands, "run_demo", lambda *_args, **_kwargs: result)
    shown = run("demo")
    assert shown.exit_code == 1
    assert "NO, exceeded" in shown.stdout
    assert "the demo failed" in shown.stderr
