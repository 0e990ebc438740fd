"""Commands that look: what they print and write, and their exit status."""

from __future__ import annotations

import builtins
import json
import math
import pickle
import re

import pytest
from typer.testing import CliRunner

import fxmem
from fxmem.cli import app
from fxmem.command import views as cli_views
from fxmem.costs import DEVICES

LAYERS = "tests.factories:layers"
TINY = "tests.factories:tiny"


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str):
    return CliRunner().invoke(app, list(args), catch_exceptions=False)


def test_help_lists_every_command():
    shown = run("--help").output
    for command in ("plan", "compare", "train", "render", "report", "devices", "demo"):
        assert f" {command} " in shown


def test_compare_prints_draws_and_writes_a_page(workplace):
    pytest.importorskip("plotly")
    result = run(
        "compare", TINY, "-b", "0.9", "-b", "0.8", "-s", "greedy", "-s", "sqrt",
        "--plot", "made/frontier.svg", "--report", "made/frontier.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.count("greedy") == result.stdout.count("sqrt") == 2
    assert "90% (" in result.stdout and "80% (" in result.stdout
    assert "</svg>" in (workplace / "made/frontier.svg").read_text()
    assert "greedy" in (workplace / "made/frontier.html").read_text()


def test_compare_as_json_is_json_alone(workplace):
    result = run("compare", TINY, "-b", "0.9", "-s", "greedy", "--json", "--measure",
                 "--plot", "frontier.svg")  # fmt: skip
    (row,) = json.loads(result.stdout)
    assert (row["solver"], row["status"]) == ("greedy", "feasible")
    assert row["measured_peak_bytes"] == row["peak_bytes"] <= row["budget_bytes"]
    assert math.isfinite(row["measured_overhead"])
    assert (workplace / "frontier.svg").exists()


def test_render_and_report_take_a_model_or_a_saved_plan(workplace):
    pytest.importorskip("plotly")
    for command, file in (("render", "graph.svg"), ("report", "page.html")):
        result = run(command, TINY, file, "-b", "0.9", "--time-limit", "1")
        assert result.exit_code == 0, result.output
        assert f"wrote {file}" in result.stdout
    assert run("plan", TINY, "-b", "0.9", "--time-limit", "1", "--save", "plan.json").exit_code == 0
    for command, file in (("render", "again.svg"), ("report", "again.html")):
        assert run(command, "plan.json", file).exit_code == 0
    assert "</svg>" in (workplace / "again.svg").read_text()
    assert "<html" in (workplace / "again.html").read_text()


def test_plan_and_render_write_the_trace_that_the_plan_writes(workplace):
    saved = ("--solver", "greedy", "-b", "0.9", "--save", "plan.json")
    planned = run("plan", TINY, *saved, "--trace", "made/trace.json")
    assert planned.exit_code == 0, planned.output
    assert "wrote made/trace.json" in planned.stdout.replace("\\", "/")
    drawn = run("render", "plan.json", "graph.dot", "--trace", "made/trace.pickle")
    assert drawn.exit_code == 0, drawn.output
    for file, read in (("trace.json", json.loads), ("trace.pickle", pickle.loads)):
        fxmem.Plan.load("plan.json").trace(file)
        assert read((workplace / "made" / file).read_bytes()) == read(
            (workplace / file).read_bytes()
        )


def test_a_trace_beside_json_leaves_json_alone(workplace):
    result = run("plan", TINY, "--time-limit", "1", "--json", "--trace", "trace.json")
    row = json.loads(result.stdout)
    events = json.loads((workplace / "trace.json").read_text())["traceEvents"]
    held = [sum(e["args"].values()) for e in events if e["ph"] == "C"]
    assert row["budget_bytes"] is None and held
    assert "wrote trace.json" in result.stderr


@pytest.mark.parametrize("level", ["layers", "modules", "operators"])
def test_render_at_each_level(workplace, level):
    assert run("render", TINY, "graph.dot", "--level", level).exit_code == 0
    assert "digraph" in (workplace / "graph.dot").read_text()


def test_devices_are_those_here_and_those_on_data_sheets():
    rows = json.loads(run("devices", "--json").stdout)
    assert rows[0]["name"] == "cpu" and rows[0]["memory_bytes"] > 2**28
    assert [r["name"] for r in rows if r["where"] == "data sheet"] == list(DEVICES)
    shown = run("devices").stdout
    assert all(name in shown for name in DEVICES)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("compare", TINY, "-s", "magic"), 1, "magic"),
        (("compare", TINY, "-b", "6 G"), 2, "ambiguous"),
        (("compare", TINY, "--measure", "--device", "h100"), 1, "leave out the device"),
        (("compare", "nowhere:tiny"), 2, "nowhere"),
        (("render", TINY, "graph.bmp"), 1, "graph.bmp"),
        (("render", TINY, "graph.svg", "--level", "atoms"), 1, "atoms"),
        (("render", "missing.json", "graph.svg"), 1, "missing.json"),
        (("report", TINY, "page.html", "-b", "1KiB", "--time-limit", "1"), 1, "no plan fits"),
        (("render", TINY), 2, "path"),
        (("plan", TINY, "-b", "0.5", "--offload", "nowhere"), 1, "is no directory"),
        (("train", TINY, "-b", "0.5", "--offload", "host"), 1, "give a directory"),
        (("plan", TINY, "--time-limit", "1", "--trace", "trace.bmp"), 1, "trace.bmp"),
        (("plan", TINY, "--solver", "magic"), 1, "magic"),
        (("report", "tests.factories:broken"), 1, "ZeroDivisionError"),
    ],
)
def test_bad_requests_are_one_message(workplace, args, status, said):
    result = run(*args)
    assert result.exit_code == status, result.output
    assert said in result.stderr and "Traceback" not in result.output
    assert not list(workplace.iterdir())


def test_an_interruption_is_one_line(monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_views, "make_plan", interrupted)
    result = run("render", TINY, "graph.svg")
    assert (result.exit_code, result.stderr) == (130, "fxmem: interrupted\n")


def test_plans_that_were_saved_by_others_are_refused(workplace):
    (workplace / "plan.json").write_text("{}")
    result = run("report", "plan.json", "page.html")
    assert result.exit_code == 1 and "is no plan" in result.stderr
    with pytest.raises(fxmem.PlanMismatch):
        fxmem.Plan.load("plan.json")


def test_values_are_moved_to_a_directory(workplace):
    (workplace / "disk").mkdir()
    limits = ("--time-limit", "5")
    least = run("plan", LAYERS, "-b", "1KiB", *limits).stderr
    budget = int(re.search(r"least feasible found is .*\((\d+) bytes\)", least)[1]) - 200_000
    moving = ("-b", str(budget), "--offload", "disk", *limits)
    planned = run("plan", LAYERS, *moving, "--json", "--save", "plan.json")
    assert planned.exit_code == 0, planned.output
    row = json.loads(planned.stdout)
    assert row["peak_bytes"] <= budget
    assert row["moved_values"] > 0 and row["transfers"] >= 2 * row["moved_values"]
    trained = run("train", LAYERS, *moving, "--steps", "1", "--json")
    assert json.loads(trained.stdout)["measured_peak_bytes"] <= budget
    assert list((workplace / "disk").iterdir()) == []
    assert run("render", "plan.json", "graph.svg").exit_code == 0
    assert "moved away and back" in (workplace / "graph.svg").read_text()


def test_a_table_that_is_piped_has_a_line_for_each_row():
    result = run("compare", TINY, "-b", "0.9", "-s", "greedy")
    (row,) = [line for line in result.stdout.splitlines() if "greedy" in line]
    assert row.count("│") == 8


@pytest.mark.parametrize(
    ("package", "args", "extra"),
    [
        ("plotly", ("report", "plan.json", "page.html"), "fxmem[report]"),
        ("matplotlib", ("plan", TINY, "--solver", "none", "--plot", "memory.png"), "fxmem[plot]"),
        ("transformers", ("demo", "--out", "."), "fxmem[models]"),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(workplace, monkeypatch, package, args, extra):
    assert run("plan", TINY, "--solver", "none", "--save", "plan.json").exit_code == 0
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    result = run(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith("fxmem: ") and result.stderr.count("\n") == 1
    assert f"pip install '{extra}'" in result.stderr
    assert [path.name for path in workplace.iterdir()] == ["plan.json"]
