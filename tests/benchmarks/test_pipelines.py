"""GPT-2 and a diffusion UNet in stages over processes, by every schedule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fxmem.runtime.pipelining import SCHEDULES
from tests.benchmarks import splits
from tests.benchmarks.pipelines import alone, build, plan_alone, work
from tests.processes import run_on


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_real_models(name: str, ranks: int, schedule: str, tmp_path: Path) -> None:
    torch.save(alone(name), tmp_path / f"{name}.pt")
    run_on(ranks, work, ranks, name, schedule, str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_slowest_stage_of_gpt2_is_near_the_bound(ranks: int, schedule: str) -> None:
    """No cut makes the slowest of so many stages faster than an equal share of the work."""
    module, inputs = build("gpt2")
    plan = plan_alone(module, inputs, [None] * ranks, schedule)
    seconds = [stage.seconds for stage in plan.stage_plans]
    print(
        f"{schedule}, {ranks} ranks: slowest {max(seconds) * ranks / sum(seconds):.3f} of a share"
    )
    assert max(seconds) <= 1.03 * sum(seconds) / ranks


@pytest.mark.benchmark
def test_uneven_layers_against_what_users_have(tmp_path: Path) -> None:
    """At 0.85 of their highest peak, the slowest rank computes at least 15 % less."""
    run_on(2, splits.work, str(tmp_path))
    for name, told in json.loads((tmp_path / "told.json").read_text()).items():
        (seconds, peak), (their_seconds, their_peak) = told["ours"], told["theirs"]
        faster, smaller = seconds / their_seconds, peak / their_peak
        print(f"{name}: slowest rank {faster:.3f}, highest peak {smaller:.3f} of theirs")
        assert faster <= 0.85 and smaller <= 0.85
