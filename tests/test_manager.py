"""The layer-by-layer interface: every row of its table."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch
from torch import Tensor, nn

import fxmem
from fxmem import (
    FxmemError,
    InfeasibleBudget,
    PoolError,
    TrainingMemoryConfig,
    TrainingMemoryManager,
)
from fxmem.allocator import record
from fxmem.residents import count_residents
from tests.layer_models import convolutions, one_by_one, outcome, plain, same, sequence, transformer

SEGMENTS = TrainingMemoryConfig(
    use_gradient_checkpointing=True,
    checkpoint_every_n_layers=2,
    checkpoint_attention_layers=False,
    high_activation_memory_threshold_bytes=2**30,
)
CONFIGS = {
    "default": TrainingMemoryConfig.default(),
    "every layer": TrainingMemoryConfig.memory_efficient(),
    "segments": SEGMENTS,
    "convolutions": TrainingMemoryConfig.for_conv_nets(),
}


@pytest.mark.parametrize("way", [sequence, one_by_one])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", ["transformer", "convolutions", "tokens"])
def test_bit_equal(kind: str, config: str, way) -> None:  # type: ignore[no-untyped-def]
    layers, x = {
        "transformer": lambda: (transformer(5), torch.randn(2, 8, 32)),
        "convolutions": lambda: (convolutions(), torch.randn(2, 4, 6, 6)),
        "tokens": lambda: ([nn.Embedding(7, 32), *transformer(3)], torch.randint(7, (2, 8))),
    }[kind]()
    wanted = outcome(plain, layers, x)
    manager = TrainingMemoryManager(CONFIGS[config])
    assert same(outcome(way(manager), layers, x), wanted)
    assert len(manager._tape) == 0  # nothing is held after the step


def test_memory_of_twelve_layers() -> None:
    layers, x = transformer(12, 64), torch.randn(8, 64, 64)
    manager = TrainingMemoryManager(TrainingMemoryConfig.memory_efficient())
    module = nn.ModuleList(layers)
    residents = count_residents(module, (x,), "adamw").total
    wanted = outcome(plain, layers, x)
    assert same(outcome(sequence(manager), layers, x), wanted)
    before = record(lambda: plain(layers, x)).peak
    module.zero_grad()
    after = record(lambda: sequence(manager)(layers, x)).peak
    assert after <= 0.4 * before  # parameter gradients are in both
    estimate = manager.estimate_memory_savings(0, 8, 64, layers=layers)
    assert estimate.without_optimization == pytest.approx(before + residents, rel=0.05)
    assert estimate.with_optimization == pytest.approx(after + residents, rel=0.05)
    assert estimate.with_optimization - residents == pytest.approx(after, rel=0.05)


def test_segments_hold_fewer_inputs() -> None:
    layers, x = transformer(6), torch.randn(2, 8, 32)
    manager = TrainingMemoryManager(SEGMENTS)
    manager.forward_sequence(layers, x)
    assert manager._tape.input_bytes == 3 * x.nbytes
    manager.clear_checkpoints()
    assert manager._tape.input_bytes == len(manager._tape) == 0


def test_backward_frees_as_it_goes() -> None:
    layers, x = transformer(4), torch.randn(2, 8, 32)
    manager = TrainingMemoryManager(TrainingMemoryConfig.memory_efficient())
    y = manager.forward_sequence(layers, x)
    gradient, held = torch.ones_like(y), []
    for index in reversed(range(4)):
        gradient = manager.backward_with_recompute(layers[index], gradient, index)
        held.append(len(manager._tape))
    assert held == [3, 2, 1, 0]


def test_loss_outside() -> None:
    layers, x = transformer(3), torch.randn(2, 8, 32)
    manager = TrainingMemoryManager(TrainingMemoryConfig.memory_efficient())
    y = manager.forward_sequence(layers, x)
    y.square().mean().backward()
    assert y.grad is not None
    gradient = manager.backward_sequence(layers, y.grad)
    torch.manual_seed(0)
    assert gradient is not None and gradient.shape == x.shape


def test_gradients_accumulate_and_frozen_layers_pass_on() -> None:
    layers, x = transformer(3), torch.randn(2, 8, 32)
    layers[1].requires_grad_(False)
    wanted = outcome(plain, layers, x, steps=3)
    manager = TrainingMemoryManager(SEGMENTS)
    assert same(outcome(sequence(manager), layers, x, steps=3), wanted)


def test_autocast_is_replayed() -> None:
    layers, x = transformer(3, dropout=0.0), torch.randn(2, 8, 32)

    def run(config: TrainingMemoryConfig) -> Tensor | None:
        manager = TrainingMemoryManager(config)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = manager.forward_sequence(layers, x)
        return manager.backward_sequence(layers, torch.ones_like(y))

    assert same([run(CONFIGS["every layer"])], [run(CONFIGS["default"])])


def test_nothing_is_kept_without_gradients() -> None:
    manager = TrainingMemoryManager(TrainingMemoryConfig.memory_efficient())
    with torch.no_grad():
        y = manager.forward_sequence(transformer(2), torch.randn(2, 8, 32))
    assert not y.requires_grad and len(manager._tape) == 0


def test_misuse_is_refused() -> None:
    layers, x = transformer(2), torch.randn(2, 8, 32)
    manager = TrainingMemoryManager(TrainingMemoryConfig.memory_efficient())
    with pytest.raises(FxmemError, match="layer 1 has kept nothing"):
        manager.backward_sequence(layers, x)
    y = manager.forward_sequence(layers, x)
    manager.backward_sequence(layers, torch.ones_like(y))
    with pytest.raises(FxmemError, match="kept nothing"):
        manager.backward_sequence(layers, torch.ones_like(y))
    with pytest.raises(FxmemError, match="inplace=False"):
        manager.forward_with_checkpoint(nn.ReLU(inplace=True), x.clone(), 0)
    with pytest.raises(FxmemError, match="nothing sharded"):
        manager.sharded_forward(x)


def test_indices() -> None:
    def indices(count: int, types: list[str] | None = None, **changes: object) -> list[int]:
        config = TrainingMemoryConfig(use_gradient_checkpointing=True, **changes)  # type: ignore[arg-type]
        manager = TrainingMemoryManager(config)
        found = manager.compute_checkpoint_indices(count, types)
        assert [i for i in range(count) if manager.should_checkpoint(i)] == found
        return found

    types = ["dense", "attention", "dense", "residual", "dense", "BasicBlock"]
    assert indices(6) == [0, 2, 4]
    assert indices(7, checkpoint_every_n_layers=3) == [0, 3, 6]
    assert indices(6, types) == [0, 1, 2, 3, 4, 5]
    assert indices(6, types, checkpoint_attention_layers=False) == [0, 2, 3, 4, 5]
    assert indices(6, types, checkpoint_residual_blocks=False) == [0, 1, 2, 4]
    assert indices(0) == []
    off = TrainingMemoryManager()
    assert off.compute_checkpoint_indices(6, types) == [] and not off.should_checkpoint(0)
    with pytest.raises(FxmemError, match="3 layers, but 6 layer types"):
        TrainingMemoryManager().compute_checkpoint_indices(3, types)


def test_rules_before_indices_are_computed() -> None:
    manager = TrainingMemoryManager(TrainingMemoryConfig(use_gradient_checkpointing=True))
    assert [manager.should_checkpoint(i) for i in range(4)] == [True, False, True, False]
    config = TrainingMemoryConfig.for_conv_nets()
    layers = [nn.Linear(4, 4) for _ in range(4)]
    assert TrainingMemoryManager(config, layers).compute_checkpoint_indices(4) == [0, 3]
    config = TrainingMemoryConfig.for_transformers()
    assert TrainingMemoryManager(config, transformer(2)).should_checkpoint(1)


def test_given_types_last() -> None:
    layers, x = [nn.Linear(8, 8) for _ in range(4)], torch.randn(2, 8)
    manager = TrainingMemoryManager(TrainingMemoryConfig(use_gradient_checkpointing=True))
    wanted = manager.compute_checkpoint_indices(4, ["dense", "attention", "dense", "dense"])
    manager.forward_sequence(layers, x)
    assert [i for i in range(4) if manager.should_checkpoint(i)] == wanted == [0, 1, 2]


def test_activation_threshold() -> None:
    layers = [nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 1000), nn.ReLU(), nn.Linear(1000, 8))]
    x = torch.randn(10, 8)
    for threshold, wanted in ((39_999, [0, 1]), (40_000, [0])):
        config = TrainingMemoryConfig(
            use_gradient_checkpointing=True,
            high_activation_memory_threshold_bytes=threshold,
        )
        manager = TrainingMemoryManager(config)
        manager.forward_sequence(layers, x)
        assert [i for i in range(2) if manager.should_checkpoint(i)] == wanted


def test_budget_is_the_solvers_choice_and_holds() -> None:
    layers, x = transformer(4), torch.randn(4, 32, 32)
    module = nn.ModuleList(layers)
    held = count_residents(module, (x,)).total
    peak = record(lambda: plain(layers, x)).peak + held
    wanted = outcome(plain, layers, x)
    manager = TrainingMemoryManager(
        TrainingMemoryConfig(use_gradient_checkpointing=True, budget=round(0.6 * peak))
    )
    assert same(outcome(sequence(manager), layers, x), wanted)
    chosen = manager.compute_checkpoint_indices(4, layers=layers, example_input=x)
    assert chosen and chosen == [i for i in range(4) if manager.should_checkpoint(i)]
    assert record(lambda: sequence(manager)(layers, x)).peak + held <= 0.6 * peak
    tight = TrainingMemoryManager(
        TrainingMemoryConfig(use_gradient_checkpointing=True, budget=1000)
    )
    with pytest.raises(InfeasibleBudget) as error:
        tight.forward_sequence(layers[:2], x)
    assert error.value.minimum_bytes is not None and error.value.minimum_bytes < peak
    with pytest.raises(FxmemError, match="example_input"):
        tight.compute_checkpoint_indices(6)


def test_no_limit_keeps_everything() -> None:
    layers, x = transformer(3), torch.randn(2, 8, 32)
    config = TrainingMemoryConfig(use_gradient_checkpointing=True, budget=1.0)
    manager = TrainingMemoryManager(config)
    assert same(outcome(sequence(manager), layers, x), outcome(plain, layers, x))


def test_flags() -> None:
    off = TrainingMemoryManager(TrainingMemoryConfig(use_activation_pooling=False))
    assert not (off.is_checkpointing_enabled or off.is_pooling_enabled or off.is_sharding_enabled)
    assert off.pool_stats is None and off.pool_memory_usage() == 0 and off.statistics is None
    assert off.rent_tensor((2, 3)).shape == (2, 3)
    config = TrainingMemoryConfig(use_gradient_checkpointing=True, devices=("cpu:0", "cpu:1"))
    on = TrainingMemoryManager(config, transformer(2))
    assert on.is_checkpointing_enabled and on.is_pooling_enabled and on.is_sharding_enabled
    assert on.config is config
    assert not TrainingMemoryManager(config).is_sharding_enabled  # no layers, no shards


def test_pool() -> None:
    manager = TrainingMemoryManager(TrainingMemoryConfig.aggressive_pooling(1))
    tensor = manager.rent_tensor((4, 8), dtype=torch.int16)
    assert tensor.dtype == torch.int16 and manager.pool_memory_usage() == 64
    manager.return_tensor(tensor)
    with pytest.raises(PoolError):
        manager.return_tensor(tensor)
    with pytest.raises(PoolError):
        manager.rent_tensor((2**18 + 1,))
    stats = manager.pool_stats
    assert stats is not None and (stats.misses, stats.returns, stats.pooled_bytes) == (1, 1, 64)


def test_warning_past_the_threshold(caplog: pytest.LogCaptureFixture) -> None:
    manager = TrainingMemoryManager(TrainingMemoryConfig.aggressive_pooling(1))  # warns at 0.8
    with caplog.at_level(logging.WARNING, "fxmem"):
        first = manager.rent_tensor((200_000,))  # 0.76
        assert not caplog.records
        second = manager.rent_tensor((20_000,))
        third = manager.rent_tensor((100,))
    assert [r.getMessage() for r in caplog.records] == [
        "the activation pool is at 859.4 KiB of 1.0 MiB (84%)"
    ]
    assert first.numel() + second.numel() + third.numel() == 220_100


def test_statistics() -> None:
    layers, x = transformer(4), torch.randn(2, 8, 32)
    manager = TrainingMemoryManager(TrainingMemoryConfig.memory_efficient())
    sequence(manager)(layers, x)
    assert manager.statistics == fxmem.manager.MemoryStatistics(4, 4, 4, 4 * x.nbytes)


def test_close() -> None:
    layers, x = transformer(2), torch.randn(2, 8, 32)
    with TrainingMemoryManager(TrainingMemoryConfig.memory_efficient()) as manager:
        manager.forward_sequence(layers, x)
        manager.return_tensor(manager.rent_tensor((4,)))
        pool = weakref.ref(manager._pool)  # type: ignore[arg-type]
    manager.close()
    gc.collect()
    assert pool() is None and len(manager._tape) == 0
    assert not (manager.is_checkpointing_enabled or manager.is_pooling_enabled)
    calls = (
        lambda: manager.forward_sequence(layers, x),
        lambda: manager.backward_sequence(layers, x),
        lambda: manager.forward_with_checkpoint(layers[0], x, 0),
        lambda: manager.backward_with_recompute(layers[0], x, 0),
        lambda: manager.rent_tensor((1,)),
        lambda: manager.return_tensor(x),
        lambda: manager.sharded_forward(x),
        lambda: manager.sharded_backward(x),
        lambda: manager.compute_checkpoint_indices(2),
        lambda: manager.estimate_memory_savings(1, 1),
        manager.__enter__,
    )
    for call in calls:
        with pytest.raises(FxmemError, match="is closed"):
            call()
