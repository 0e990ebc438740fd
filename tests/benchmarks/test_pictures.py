"""Seconds that pictures of the published models take."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import fxmem
from fxmem.visualize.graph import scene_of
from fxmem.visualize.scene import overlapping

from .models import MODELS

pytestmark = pytest.mark.benchmark
LIMITS = {"layers": 5.0, "modules": 5.0, "operators": 30.0}


@pytest.mark.parametrize("name", ["gpt2", "unet", "resnet50"])
def test_graphs_are_drawn_in_time(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    plan = fxmem.optimize(module, 0.65, inputs, time_limit=5).plan
    for level, limit in LIMITS.items():
        for suffix in (".svg", ".png"):
            began = time.perf_counter()
            plan.render(tmp_path / f"plan{suffix}", level=level)
            taken = time.perf_counter() - began
            print(f"{name} {level} {suffix}: {taken:.2f} s")
            assert taken < limit
        assert overlapping(scene_of(plan, level).boxes) == []
