"""The arena on real models: how large, how much of the step it serves, what time it saves."""

from __future__ import annotations

import copy
import statistics
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import fxmem
from fxmem.runtime.arena import trim_all

from .models import build

pytestmark = pytest.mark.benchmark


def allocations(call) -> int:
    """How often a step asks the ordinary allocator for memory."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = recorded.profiler.kineto_results.events()
    return sum(e.name() == "[memory]" and e.nbytes() > 0 for e in events)


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "unet"])
def test_size_and_share(name: str) -> None:
    module, inputs = build(name)
    for budget in (None, 0.9, 0.6, 0.4):
        torch._dynamo.reset()
        module.zero_grad()
        try:
            fitted = fxmem.optimize(copy.deepcopy(module), budget, inputs, time_limit=10)
        except fxmem.InfeasibleBudget:
            print(f"{name} at {budget}: infeasible")
            continue
        pool = fitted.plan.pool
        assert pool is not None, f"{name} at {budget}: no arena fits"
        print(f"{name} at {budget}: {pool.ratio:.4f} of live bytes, share {pool.share:.2%}")
        assert pool.ratio <= 1.01
        assert pool.share >= 0.95


def test_calls_and_time() -> None:
    module, inputs = build("gpt2")
    ways = {
        "eager": copy.deepcopy(module),
        "fxmem": fxmem.optimize(copy.deepcopy(module), None, inputs),
    }

    def step(name: str) -> None:
        ways[name].zero_grad()
        ways[name](*inputs).backward()

    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(15):
        for name in ways:
            step(name)
            start = time.perf_counter()
            step(name)
            seconds[name].append(time.perf_counter() - start)
    calls = {name: allocations(lambda name=name: step(name)) for name in ways}
    ratio = statistics.median(seconds["fxmem"]) / statistics.median(seconds["eager"])
    print(f"allocator calls {calls}; time {ratio:.3f} of eager's")
    assert calls["fxmem"] <= 0.05 * calls["eager"]
    assert ratio <= 0.9
    trim_all()
