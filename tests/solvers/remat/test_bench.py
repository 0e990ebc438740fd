"""The table of solvers on a folder of instances."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from fxmem.solvers.remat.__main__ import app
from fxmem.solvers.remat.bench import bench


def write(folder: Path) -> None:
    edge = [(v, v + 1) for v in range(7)] + [(v, 8 - v) for v in range(3)]
    data = {"size": [3, 2, 4, 1, 2, 3, 1, 2, 1], "time": [1] * 9, "edge": edge}
    (folder / "small.json").write_text(json.dumps(data))


def test_rows_are_replayed_and_complete(tmp_path: Path) -> None:
    write(tmp_path)
    rows = list(bench(tmp_path, ["auto", "none"], [1.0, 0.8], 0.5, True, 0))
    assert [(r.share, r.solver) for r in rows] == [
        (1.0, "auto"), (1.0, "none"), (0.8, "auto"), (0.8, "none"),
    ]  # fmt: skip
    assert rows[0].increase == 0
    assert rows[0].status == "optimal"
    assert all(r.peak <= r.share for r in rows if r.status in ("optimal", "feasible"))


def test_command_line(tmp_path: Path) -> None:
    write(tmp_path)
    run = CliRunner().invoke
    table = run(app, ["bench", str(tmp_path), "--solver", "greedy", "--budget", "0.9"])
    assert table.exit_code == 0
    assert "| small | 90% | greedy |" in table.output
    as_json = run(app, ["bench", str(tmp_path), "--solver", "none", "--budget", "1.0", "--json"])
    assert json.loads(as_json.output)[0]["instance"] == "small"
    assert run(app, ["bench", str(tmp_path), "--solver", "nonsense"]).exit_code == 2
    assert run(app, ["bench", str(tmp_path / "missing")]).exit_code == 2
    for nothing in ([str(tmp_path / "none")], [str(tmp_path), "--only", "large"]):
        (tmp_path / "none").mkdir(exist_ok=True)
        empty = run(app, ["bench", *nothing])
        assert empty.exit_code == 2
        assert "holds no" in " ".join(empty.output.replace("│", " ").split())  # it is wrapped
    (tmp_path / "bad.json").write_text("{}")
    wrong = run(app, ["bench", str(tmp_path), "--solver", "none"])
    assert wrong.exit_code == 1
    assert "bad.json" in wrong.output.replace("\n", "")
