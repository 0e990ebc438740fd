"""Settings are checked, frozen, and each preset says what it does."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from fxmem import Budget, FxmemError, TrainingMemoryConfig


def test_defaults() -> None:
    config = TrainingMemoryConfig.default()
    assert config == TrainingMemoryConfig()
    assert {f.name: getattr(config, f.name) for f in fields(config)} == {
        "use_gradient_checkpointing": False,
        "checkpoint_every_n_layers": 2,
        "checkpoint_attention_layers": True,
        "checkpoint_residual_blocks": True,
        "high_activation_memory_threshold_bytes": 2**20,
        "use_activation_pooling": True,
        "max_pool_memory_mb": 4096,
        "num_devices": 1,
        "devices": None,
        "sharding_strategy": "even_split",
        "custom_device_assignments": None,
        "max_memory_per_device": None,
        "use_pipeline_parallelism": False,
        "micro_batch_count": 4,
        "track_memory_statistics": False,
        "memory_warning_threshold": 0.9,
        "budget": None,
    }
    with pytest.raises(FrozenInstanceError):
        config.num_devices = 2  # type: ignore[misc]


def test_presets() -> None:
    efficient = TrainingMemoryConfig.memory_efficient()
    assert efficient.use_gradient_checkpointing and efficient.checkpoint_every_n_layers == 1
    assert not TrainingMemoryConfig.speed_optimized().use_gradient_checkpointing
    assert TrainingMemoryConfig.multi_gpu(3).num_devices == 3
    assert TrainingMemoryConfig.multi_gpu(3).use_pipeline_parallelism
    assert not TrainingMemoryConfig.multi_gpu(1).use_pipeline_parallelism
    assert TrainingMemoryConfig.for_transformers().checkpoint_attention_layers
    assert TrainingMemoryConfig.for_conv_nets().checkpoint_residual_blocks
    assert TrainingMemoryConfig.aggressive_pooling().max_pool_memory_mb == 512
    assert TrainingMemoryConfig.aggressive_pooling(7).max_pool_memory_mb == 7


def test_normalised() -> None:
    config = TrainingMemoryConfig(
        use_gradient_checkpointing=True, devices=("cpu:0", "cpu:1"), budget="1 MiB"
    )
    assert config.devices == (torch.device("cpu:0"), torch.device("cpu:1"))
    assert config.num_devices == 2
    assert config.budget == Budget(bytes=2**20)
    alone = config.on_one_device()
    assert alone.num_devices == 1 and alone.devices is None and alone.budget == config.budget


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"checkpoint_every_n_layers": 0}, "checkpoint_every_n_layers is an integer of at least 1"),
        ({"max_pool_memory_mb": True}, "max_pool_memory_mb"),
        ({"num_devices": 0}, "num_devices"),
        ({"micro_batch_count": 1.5}, "micro_batch_count"),
        ({"max_memory_per_device": 0}, "max_memory_per_device"),
        ({"high_activation_memory_threshold_bytes": -1}, "at least 0"),
        ({"memory_warning_threshold": 0.0}, r"share in \(0, 1\]"),
        ({"memory_warning_threshold": 1.1}, r"share in \(0, 1\]"),
        ({"sharding_strategy": "best"}, "even_split, memory_balanced, custom, optimal"),
        ({"sharding_strategy": "custom"}, "go together"),
        ({"custom_device_assignments": {0: 0}}, "go together"),
        (
            {"sharding_strategy": "custom", "custom_device_assignments": {0: 1}},
            "names device 1; there are 1",
        ),
        ({"num_devices": 3, "devices": ("cpu", "cpu")}, "give one of the two"),
        ({"devices": ()}, "number of devices"),
        ({"use_pipeline_parallelism": True}, "several devices"),
        ({"budget": 0.5}, "use_gradient_checkpointing=True"),
        ({"budget": "5 Mb", "use_gradient_checkpointing": True}, "bits"),
    ],
)
def test_refused(changes: dict, message: str) -> None:
    with pytest.raises(FxmemError, match=message):
        TrainingMemoryConfig(**changes)
