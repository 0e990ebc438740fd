"""Logs by torch's own switches, and silence without them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxmem
from tests.cases import make

SCRIPT = """
import torch, fxmem
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
fxmem.optimize(module, None, (torch.randn(4, 8),))
"""


def in_a_process(**environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("TORCH_LOGS", "TORCH_TRACE")}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def test_torchs_own_variables(tmp_path: Path) -> None:
    ran = in_a_process(TORCH_LOGS="+fxmem", TORCH_TRACE=str(tmp_path))
    assert "planned" in ran.stderr and "Keep()" in ran.stderr
    (trace,) = tmp_path.glob("*.log")
    lines = trace.read_text().splitlines()
    told = [json.loads(line[line.index("{") :]) for line in lines if '"artifact"' in line]
    names = {row["artifact"]["name"] for row in told}
    assert names >= {"fxmem_plan", "fxmem_forward_graph", "fxmem_backward_graph"}


def test_silent_by_default() -> None:
    ran = in_a_process()
    assert (ran.stdout, ran.stderr) == ("", "")


def test_the_logger_of_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    case = make("mlp")
    with caplog.at_level(logging.DEBUG, logger="fxmem"):
        plan = fxmem.optimize(case.module, None, case.args).plan
    assert plan.summary().splitlines()[-1] in caplog.text
    for name in plan.decisions:
        assert f"{name}: Keep()" in caplog.text
