"""Layers on several devices.

Logical devices: "cpu:0" and "cpu:1" are one memory to torch, but two stages here, and what goes
between them is really copied. That layers move is tested on "cpu" and "meta", two devices to torch.
"""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from fxmem import FxmemError, InfeasibleBudget, TrainingMemoryConfig, TrainingMemoryManager
from fxmem.layers.sharding import assign, layer_bytes
from tests.layer_models import outcome, plain, same, sharded, transformer

TWO = ("cpu:0", "cpu:1")


@pytest.mark.parametrize("strategy", ["even_split", "memory_balanced", "optimal", "custom"])
@pytest.mark.parametrize("every", [None, 1, 3])
def test_two_devices_give_the_plain_result(strategy: str, every: int | None) -> None:
    layers, x = transformer(5), torch.randn(4, 8, 32)
    wanted = outcome(plain, layers, x)
    config = TrainingMemoryConfig(
        use_gradient_checkpointing=every is not None,
        checkpoint_every_n_layers=every or 1,
        checkpoint_attention_layers=False,
        devices=TWO,
        sharding_strategy=strategy,
        custom_device_assignments={0: 0, 1: 0, 2: 1, 3: 0, 4: 1} if strategy == "custom" else None,
        track_memory_statistics=True,
    )
    manager = TrainingMemoryManager(config, layers)
    assert set(manager.device_assignments) == {0, 1}
    assert same(outcome(sharded(manager), layers, x), wanted)
    visits = 4 if strategy == "custom" else 2  # one copy into each, forward and backward, twice
    assert manager.statistics is not None
    assert manager.statistics.transfers == 2 * 2 * visits
    assert manager.statistics.transferred_bytes == 2 * 2 * visits * x.nbytes


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("batch, parts", [(8, 4), (5, 2), (2, 4)])
def test_microbatches(batch: int, parts: int, checkpoint: bool) -> None:
    layers, x = transformer(4, dropout=0.0), torch.randn(batch, 8, 32)
    config = TrainingMemoryConfig(
        use_gradient_checkpointing=checkpoint,
        devices=TWO,
        use_pipeline_parallelism=True,
        micro_batch_count=parts,
    )
    manager = TrainingMemoryManager(config, layers)
    seen: list[int] = []
    handle = layers[0].register_forward_hook(lambda _m, args, _y: seen.append(len(args[0])))
    with torch.no_grad():
        manager.sharded_forward(x)
    handle.remove()
    assert seen == [len(piece) for piece in x.chunk(parts)]
    found, wanted = outcome(sharded(manager), layers, x), outcome(plain, layers, x)
    for new, old in zip(found, wanted, strict=True):
        assert isinstance(new, Tensor) and isinstance(old, Tensor)
        torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-4)


def test_pipeline_order() -> None:
    config = TrainingMemoryConfig(devices=TWO, use_pipeline_parallelism=True, micro_batch_count=3)
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    manager, seen = TrainingMemoryManager(config, layers), []
    for stage, layer in enumerate(layers):
        layer.register_forward_hook(lambda *_, s=stage: seen.append(s))
    manager.sharded_forward(torch.randn(3, 2))
    assert sorted(seen[:3]) == [0, 0, 1] and sorted(seen) == [0, 0, 0, 1, 1, 1]


def test_layers_really_move() -> None:
    layers = [nn.Linear(2, 2) for _ in range(4)]
    config = TrainingMemoryConfig(devices=("cpu", "meta"))
    manager = TrainingMemoryManager(config, layers)
    assert [layer.weight.device.type for layer in layers] == ["cpu", "cpu", "meta", "meta"]
    y = manager.sharded_forward(torch.randn(3, 2))
    assert y.device.type == "meta" and y.shape == (3, 2)


def sizes(*widths: int) -> list[nn.Module]:
    """Layers of 8 bytes a unit of width: weights and gradients."""
    return [nn.Linear(width, 1, bias=False) for width in widths]


def test_strategies() -> None:
    layers = sizes(1, 1, 1, 1, 8, 2)
    assert [layer_bytes(layer) for layer in layers] == [8, 8, 8, 8, 64, 16]

    def stages(strategy: str, **more: object) -> tuple[int, ...]:
        config = TrainingMemoryConfig(devices=TWO, sharding_strategy=strategy, **more)  # type: ignore[arg-type]
        return assign(layers, config)

    assert stages("even_split") == (0, 0, 0, 1, 1, 1)
    assert stages("memory_balanced") == (0, 0, 0, 0, 1, 1)
    assert stages("optimal") == (0, 0, 0, 0, 1, 1)
    given = {0: 1, 1: 0, 2: 0, 3: 0, 4: 1, 5: 0}
    assert stages("custom", custom_device_assignments=given) == (1, 0, 0, 0, 1, 0)
    with pytest.raises(FxmemError, match="no device for layer 1"):
        stages("custom", custom_device_assignments={0: 0})
    with pytest.raises(InfeasibleBudget) as error:
        stages("optimal", max_memory_per_device=79)
    assert error.value.minimum_bytes == 80 and error.value.blockers == (
        ("layer 4", 64),
        ("layer 5", 16),
    )
    assert stages("optimal", max_memory_per_device=80) == (0, 0, 0, 0, 1, 1)


def test_full_devices_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    config = TrainingMemoryConfig(
        devices=TWO, max_memory_per_device=80, memory_warning_threshold=0.5
    )
    with caplog.at_level(logging.WARNING, "fxmem"):
        TrainingMemoryManager(config, sizes(1, 1, 4, 5))
    assert [r.getMessage() for r in caplog.records] == ["device cpu:1 is at 72 B of 80 B (90%)"]


def test_absent_devices() -> None:
    count = torch.cuda.device_count() + 1
    with pytest.raises(FxmemError, match=rf"machine has {count - 1} CUDA devices"):
        TrainingMemoryManager(TrainingMemoryConfig(num_devices=max(2, count)), transformer(2))
