"""Each example runs and says what it should."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def lines_of(name: str, capsys: pytest.CaptureFixture[str], **arguments: int) -> list[str]:
    runpy.run_path(str(EXAMPLES / name))["main"](**arguments)
    return capsys.readouterr().out.splitlines()


def losses(lines: list[str]) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("step ")]


def test_every_example_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []


def test_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    first, *steps = lines_of("layer_by_layer.py", capsys)
    saved = re.fullmatch(r"a step takes \S+ MiB instead of \S+ MiB \((\d+) % less\)", first)
    assert saved is not None and int(saved[1]) >= 50
    seen = losses(steps)
    assert len(seen) == 3 and seen[2] < seen[0]


def test_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of("plain_loop.py", capsys)
    seen = losses(lines)
    assert len(seen) == 3 and seen[2] < seen[0]
    said = re.fullmatch(r"peak (\S+) MiB instead of (\S+) MiB, budget (\S+) MiB", lines[-1])
    assert said is not None
    peak, plain, budget = map(float, said.groups())
    assert peak <= budget == pytest.approx(0.6 * plain, abs=0.1)  # printed to one digit


def test_transformers_gpt2(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    lines = lines_of("transformers_gpt2.py", capsys)
    seen = losses(lines)
    assert len(seen) == 3 and seen[2] < seen[0]
    assert any(line.startswith("recomputed") for line in lines)


def test_plan_for_absent_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    lines = lines_of("plan_for_absent_gpu.py", capsys, layers=2, width=128, batch=1)
    assert [line for line in lines if line.endswith(":")] == ["rtx4090:", "a100-80gb:"]
    assert sum(line.startswith("budget") for line in lines) == 2


def test_several_devices(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of("several_devices.py", capsys)
    seen = losses(lines)
    assert len(seen) == 3 and seen[2] < seen[0]
    rows = [line for line in lines if line.startswith("cpu:")]
    assert len(rows) == 2
    for row in rows:
        budget, predicted, measured = map(float, re.findall(r" (\d+\.\d) MiB", row))
        assert measured == predicted <= budget
