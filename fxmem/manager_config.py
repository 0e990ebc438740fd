"""Settings of `TrainingMemoryManager`; every field does something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from .budget import Budget
from .errors import FxmemError

SHARDING_STRATEGIES = ("even_split", "memory_balanced", "custom", "optimal")


@dataclass(frozen=True)
class TrainingMemoryConfig:
    """What `TrainingMemoryManager` does.

    Attributes
    ----------
    use_gradient_checkpointing : bool
        Do selected layers keep their input only?
    checkpoint_every_n_layers : int
        Layers 0, n, 2n, ... are selected.
    checkpoint_attention_layers, checkpoint_residual_blocks : bool
        Are layers of these types selected as well?
    high_activation_memory_threshold_bytes : int
        Layers that keep more than this for their backward pass are selected as well.
    use_activation_pooling : bool
        Is there a pool to rent tensors from?
    max_pool_memory_mb : int
        Limit of that pool, in units of 2**20 bytes.
    num_devices : int
        How many CUDA devices to use, from the first on. One: no sharding.
    devices : tuple of torch.device or str, optional
        The devices instead; naming one twice makes two stages on it.
    sharding_strategy : {"even_split", "memory_balanced", "custom", "optimal"}
        Equal numbers of layers; parameter bytes filled up to the average; as assigned; or the
        cuts whose fullest device holds the fewest parameter bytes.
    custom_device_assignments : mapping from int to int
        Position in ``devices`` of each layer, for "custom".
    max_memory_per_device : int, optional
        Bytes of parameters, buffers and gradients that a device may hold.
    use_pipeline_parallelism : bool
        Does a sharded pass go through the devices in microbatches?
    micro_batch_count : int
        How many of them.
    track_memory_statistics : bool
        Does the manager keep `MemoryStatistics`?
    memory_warning_threshold : float
        Share of a limit (of the pool, of a device), in (0, 1], above which a warning is logged.
    budget : int, str, float or Budget, optional
        Peak bytes of a whole step, without optimizer state; a share is of the same loop with
        nothing recomputed. Given, with checkpointing, the solver selects the layers.
    """

    use_gradient_checkpointing: bool = False
    checkpoint_every_n_layers: int = 2
    checkpoint_attention_layers: bool = True
    checkpoint_residual_blocks: bool = True
    high_activation_memory_threshold_bytes: int = 2**20
    use_activation_pooling: bool = True
    max_pool_memory_mb: int = 4096
    num_devices: int = 1
    devices: tuple[torch.device | str, ...] | None = None
    sharding_strategy: str = "even_split"
    custom_device_assignments: Mapping[int, int] | None = None
    max_memory_per_device: int | None = None
    use_pipeline_parallelism: bool = False
    micro_batch_count: int = 4
    track_memory_statistics: bool = False
    memory_warning_threshold: float = 0.9
    budget: int | str | float | Budget | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_every_n_layers", "max_pool_memory_mb", "num_devices"):
            _at_least(name, getattr(self, name), 1)
        _at_least("micro_batch_count", self.micro_batch_count, 1)
        _at_least(
            "high_activation_memory_threshold_bytes", self.high_activation_memory_threshold_bytes, 0
        )
        if self.max_memory_per_device is not None:
            _at_least("max_memory_per_device", self.max_memory_per_device, 1)
        if not 0 < self.memory_warning_threshold <= 1:
            raise FxmemError(
                "memory_warning_threshold is a share in (0, 1], not "
                f"{self.memory_warning_threshold}"
            )
        if self.devices is not None:
            if self.num_devices not in (1, len(self.devices)):
                raise FxmemError(
                    f"num_devices is {self.num_devices}, but {len(self.devices)} devices are "
                    "named; give one of the two."
                )
            devices = tuple(torch.device(d) for d in self.devices)
            _at_least("the number of devices", len(devices), 1)
            object.__setattr__(self, "devices", devices)
            object.__setattr__(self, "num_devices", len(devices))
        if self.sharding_strategy not in SHARDING_STRATEGIES:
            raise FxmemError(
                f"sharding_strategy={self.sharding_strategy!r} is not known; give one of "
                f"{', '.join(SHARDING_STRATEGIES)}."
            )
        if (self.sharding_strategy == "custom") != (self.custom_device_assignments is not None):
            raise FxmemError(
                'sharding_strategy="custom" and custom_device_assignments go together: give both '
                "or neither."
            )
        if self.custom_device_assignments is not None:
            assigned = dict(self.custom_device_assignments)
            beyond = {p for p in assigned.values() if not 0 <= p < self.num_devices}
            if beyond:
                raise FxmemError(
                    f"custom_device_assignments names device {min(beyond)}; there are "
                    f"{self.num_devices}, counted from 0."
                )
            object.__setattr__(self, "custom_device_assignments", MappingProxyType(assigned))
        if self.use_pipeline_parallelism and self.num_devices == 1:
            raise FxmemError("a pipeline needs several devices: give num_devices or devices.")
        if self.budget is not None:
            object.__setattr__(self, "budget", Budget.parse(self.budget))
            if not self.use_gradient_checkpointing:
                raise FxmemError("a budget needs use_gradient_checkpointing=True to act on.")

    @classmethod
    def default(cls) -> TrainingMemoryConfig:
        """A pool, and nothing else."""
        return cls()

    @classmethod
    def memory_efficient(cls) -> TrainingMemoryConfig:
        """Every layer keeps its input only; a small pool; statistics."""
        return cls(
            use_gradient_checkpointing=True,
            checkpoint_every_n_layers=1,
            max_pool_memory_mb=1024,
            track_memory_statistics=True,
        )

    @classmethod
    def speed_optimized(cls) -> TrainingMemoryConfig:
        """Nothing is recomputed; a large pool."""
        return cls(max_pool_memory_mb=8192)

    @classmethod
    def multi_gpu(cls, n: int) -> TrainingMemoryConfig:
        """Layers over ``n`` CUDA devices by the exact partition, every second checkpointed."""
        return cls(
            use_gradient_checkpointing=True,
            num_devices=n,
            sharding_strategy="optimal",
            use_pipeline_parallelism=n > 1,
        )

    @classmethod
    def for_transformers(cls) -> TrainingMemoryConfig:
        """Attention layers keep their input only, and so does every layer in between."""
        return cls(use_gradient_checkpointing=True, checkpoint_every_n_layers=1)

    @classmethod
    def for_conv_nets(cls) -> TrainingMemoryConfig:
        """Residual blocks and every third layer are checkpoints."""
        return cls(
            use_gradient_checkpointing=True,
            checkpoint_every_n_layers=3,
            checkpoint_attention_layers=False,
            high_activation_memory_threshold_bytes=4 * 2**20,
        )

    @classmethod
    def aggressive_pooling(cls, mb: int = 512) -> TrainingMemoryConfig:
        """A pool of ``mb`` MiB that warns early."""
        return cls(max_pool_memory_mb=mb, memory_warning_threshold=0.8)

    def on_one_device(self) -> TrainingMemoryConfig:
        """The same without sharding."""
        return replace(
            self,
            num_devices=1,
            devices=None,
            sharding_strategy="even_split",
            custom_device_assignments=None,
            max_memory_per_device=None,
            use_pipeline_parallelism=False,
        )


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise FxmemError(f"{name} is an integer of at least {least}, not {value!r}")
