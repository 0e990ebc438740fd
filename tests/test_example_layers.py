"""The layer-by-layer example runs and says what it should."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "layer_by_layer.py"


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    first, *steps = capsys.readouterr().out.splitlines()
    saved = re.fullmatch(r"a step takes \S+ MiB instead of \S+ MiB \((\d+) % less\)", first)
    assert saved is not None and int(saved[1]) >= 50
    losses = [float(line.rpartition(" ")[2]) for line in steps]
    assert len(losses) == 3 and losses[2] < losses[0]
