"""Savings: the published formula, and the layers themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fxmem import FxmemError, MemorySavingsEstimate, TrainingMemoryConfig, TrainingMemoryManager
from fxmem.allocator import record
from fxmem.layers.estimate import layer_activation_bytes
from fxmem.layers.profile import profile_layers
from fxmem.residents import count_residents
from tests.layer_models import convolutions, plain, sequence, transformer


def estimate(config: TrainingMemoryConfig, **more: object) -> MemorySavingsEstimate:
    asked = {"model_parameters": 12 * 12 * 768**2, "batch_size": 8, "hidden_size": 768, **more}
    return TrainingMemoryManager(config).estimate_memory_savings(**asked)  # type: ignore[arg-type]


def test_published_figure() -> None:
    """GPT-3 175B of Korthikanti et al.: s=2048, b=1, h=12288, a=96, half precision."""
    s, b, h, a = 2048, 1, 12288, 96
    assert layer_activation_bytes(b, s, h, a, 2) == s * b * h * 34 + 5 * a * s * s * b


def test_by_hand() -> None:
    none = TrainingMemoryConfig(use_activation_pooling=False)
    found = estimate(none)
    states = 12 * 12 * 768**2 * 4 * 4
    layer = 8 * 512 * 768 * (16 * 4 + 2) + 12 * 512 * 512 * 8 * 9
    assert found == MemorySavingsEstimate(
        states + 12 * layer, states + 12 * layer, False, False, False
    )
    assert found.savings_bytes == 0 and found.savings_percentage == 0.0
    boundary = 8 * 512 * 768 * 4
    every = estimate(replace(none, use_gradient_checkpointing=True))
    assert every.with_optimization == states + 12 * boundary + layer
    assert every.savings_bytes == 11 * layer - 12 * boundary
    assert every.savings_percentage == pytest.approx(
        100 * every.savings_bytes / every.without_optimization
    )
    pooled = estimate(TrainingMemoryConfig())
    assert pooled.with_optimization == found.with_optimization + boundary
    halves = estimate(replace(none, devices=("cpu:0", "cpu:1")))
    assert halves.with_optimization == states // 2 + 6 * layer
    piped = replace(
        none,
        devices=("cpu:0", "cpu:1"),
        use_gradient_checkpointing=True,
        use_pipeline_parallelism=True,
        micro_batch_count=4,
    )
    assert estimate(piped).with_optimization == states // 2 + 6 * boundary + layer // 4


def test_arguments_count() -> None:
    config = TrainingMemoryConfig.memory_efficient()
    base = estimate(config)
    assert estimate(config, dtype=torch.bfloat16).without_optimization < base.without_optimization
    assert estimate(config, optimizer="sgd").without_optimization == (
        base.without_optimization - 12 * 12 * 768**2 * 8
    )
    assert estimate(config, sequence_length=1024).with_optimization > base.with_optimization
    guessed = estimate(config, hidden_size=None)
    assert guessed.without_optimization != base.without_optimization
    for wrong in ({"batch_size": 0}, {"optimizer": "lion"}):
        with pytest.raises(FxmemError):
            estimate(config, **wrong)


SEGMENTS = TrainingMemoryConfig(
    use_gradient_checkpointing=True,
    checkpoint_every_n_layers=2,
    checkpoint_attention_layers=False,
    high_activation_memory_threshold_bytes=2**30,
)


@pytest.mark.parametrize("config", [TrainingMemoryConfig(), SEGMENTS], ids=["plain", "segments"])
@pytest.mark.parametrize("tokens", [False, True])
def test_layers_within_five_percent(config: TrainingMemoryConfig, tokens: bool) -> None:
    layers = transformer(4, 64)
    x = torch.randn(8, 64, 64)
    if tokens:
        layers, x = [nn.Embedding(50, 64), *layers], torch.randint(50, (8, 64))
    manager = TrainingMemoryManager(config)
    residents = count_residents(nn.ModuleList(layers), (x,), "adamw").total
    found = manager.estimate_memory_savings(0, 8, 64, layers=layers)
    without = record(lambda: plain(layers, x)).peak
    nn.ModuleList(layers).zero_grad()
    after = record(lambda: sequence(manager)(layers, x)).peak
    assert found.without_optimization == pytest.approx(without + residents, rel=0.05)
    assert found.with_optimization == pytest.approx(after + residents, rel=0.05)


def test_layers_flags_change_the_figure() -> None:
    layers = transformer(4)
    manager = TrainingMemoryManager(TrainingMemoryConfig())
    base = manager.estimate_memory_savings(0, 2, 8, layers=layers)
    tensor = manager.rent_tensor((1000,))
    pooled = manager.estimate_memory_savings(0, 2, 8, layers=layers)
    assert pooled.with_optimization == base.with_optimization + tensor.nbytes
    sharded = TrainingMemoryManager(TrainingMemoryConfig(devices=("cpu:0", "cpu:1")))
    half = sharded.estimate_memory_savings(0, 2, 8, layers=layers)
    assert half.sharding_enabled and half.with_optimization < 0.6 * base.with_optimization
    assert all(p.grad is None for layer in layers for p in layer.parameters())


def test_width_must_be_known() -> None:
    with pytest.raises(FxmemError, match="hidden_size"):
        TrainingMemoryManager().estimate_memory_savings(0, 2, 8, layers=[nn.ReLU()])


def test_profile_by_hand() -> None:
    layers = [nn.Linear(4, 6, bias=False), nn.Sigmoid()]
    first, second = profile_layers(layers, torch.randn(5, 4))
    assert (first.saved_bytes, first.output_bytes, first.gradient_bytes) == (0, 120, 96)
    assert (second.saved_bytes, second.output_bytes, second.gradient_bytes) == (0, 120, 0)
    assert first.seconds == 0.0


def test_profile_leaves_no_trace() -> None:
    layers, x = convolutions(), torch.randn(2, 4, 6, 6)
    before = [b.clone() for layer in layers for b in layer.buffers()]
    state = torch.get_rng_state()
    assert all(p.seconds > 0 for p in profile_layers(layers, x, timed=True))
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (b for m in layers for b in m.buffers()), strict=True)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for layer in layers for p in layer.parameters())
