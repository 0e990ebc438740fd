"""`torchrun -m fxmem train`: the same losses as one process, and every rank within its budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fxmem.cli import app

FACTORY = """
import torch

class Scored(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            *(m for _ in range(3) for m in (torch.nn.Linear(64, 64), torch.nn.GELU()))
        )

    def forward(self, x):
        return self.body(x).square().mean()

def scored():
    return Scored(), (torch.randn(256, 64),)
"""
BUDGETS = [320_000, 200_000]


def test_two_processes_train_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories_of_ranks.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    train = ["train", "factories_of_ranks:scored", "--time-limit", "1", "--rate", "0.01", "--json"]
    train += ["--optimizer", "adamw"]
    alone = CliRunner().invoke(app, train, catch_exceptions=False)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    run += ["-m", "fxmem", *train, "-b", ",".join(map(str, BUDGETS)), "--offload", str(tmp_path)]
    here = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, env=here)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["budget_bytes"] == BUDGETS
    for kind in ("measured_peak_bytes", "predicted_peak_bytes"):
        assert all(peak <= b for peak, b in zip(told[kind], BUDGETS, strict=True))
    wanted = [row["loss"] for row in json.loads(alone.stdout)["steps"]]
    assert [row["loss"] for row in told["steps"]] == pytest.approx(wanted, rel=1e-4)
    assert wanted[0] > wanted[-1]
