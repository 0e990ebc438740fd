"""Layers on their devices, and what goes between."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from ..budget import format_bytes
from ..errors import FxmemError, InfeasibleBudget
from ..manager_config import TrainingMemoryConfig
from ..solvers.partition import NoPartition, partition_chain

log = logging.getLogger("fxmem")


@dataclass(frozen=True)
class Shards:
    """Layers on their devices.

    Attributes
    ----------
    layers : tuple of nn.Module
    devices : tuple of torch.device
    stages : tuple of int
        Position among ``devices`` of each layer.
    """

    layers: tuple[nn.Module, ...]
    devices: tuple[torch.device, ...]
    stages: tuple[int, ...]

    @classmethod
    def place(cls, layers: Sequence[nn.Module], config: TrainingMemoryConfig) -> Shards:
        """Assign layers and move them; warns of devices that are nearly full."""
        devices, stages = devices_of(config), assign(layers, config)
        for layer, stage in zip(layers, stages, strict=True):
            layer.to(devices[stage])
        limit = config.max_memory_per_device
        if limit is not None:
            sizes = [layer_bytes(layer) for layer in layers]
            for i, held in enumerate(stage_bytes(sizes, stages, len(devices))):
                if held > config.memory_warning_threshold * limit:
                    log.warning("device %s is at %s", devices[i], describe(held, limit))
        return cls(tuple(layers), devices, stages)

    @cached_property
    def visits(self) -> tuple[int, ...]:
        """Number of the run of consecutive layers on one device that each layer belongs to."""
        changes = [after != before for before, after in pairwise(self.stages)]
        return tuple(accumulate(changes, initial=0))

    def layers_of(self, visit: int) -> list[int]:
        """Layers of one visit to a device."""
        return [i for i, v in enumerate(self.visits) if v == visit]

    def device_of(self, visit: int) -> torch.device:
        """Where a visit takes place."""
        return self.devices[self.stages[self.visits.index(visit)]]

    def clock(self, runs: int) -> list[tuple[int, int]]:
        """(visit, run) in the order of a pipeline that fills, then drains."""
        count = self.visits[-1] + 1
        return [(t - m, m) for t in range(count + runs) for m in range(runs) if 0 <= t - m < count]


def layer_bytes(layer: nn.Module) -> int:
    """Parameters, their gradients, and buffers."""
    parameters = sum(p.nbytes * (2 if p.requires_grad else 1) for p in layer.parameters())
    return parameters + sum(b.nbytes for b in layer.buffers())


def devices_of(config: TrainingMemoryConfig) -> tuple[torch.device, ...]:
    """Those named, or the first CUDA devices."""
    if config.devices is not None:
        return tuple(torch.device(d) for d in config.devices)
    if config.num_devices > torch.cuda.device_count():
        raise FxmemError(
            f"num_devices is {config.num_devices}, but this machine has "
            f'{torch.cuda.device_count()} CUDA devices; name others by devices=("cpu:0", "cpu:1").'
        )
    return tuple(torch.device("cuda", i) for i in range(config.num_devices))


def assign(layers: Sequence[nn.Module], config: TrainingMemoryConfig) -> tuple[int, ...]:
    """The stage of each layer, by the config's strategy.

    Raises
    ------
    InfeasibleBudget
        A stage holds more than ``max_memory_per_device``.
    FxmemError
        A layer has no device in a custom assignment.
    """
    sizes, parts = [layer_bytes(layer) for layer in layers], config.num_devices
    limit = config.max_memory_per_device
    if config.sharding_strategy == "custom":
        stages = _custom(config, len(layers))
    elif config.sharding_strategy == "optimal":
        try:
            stages = partition_chain(sizes, parts, capacity=limit)
        except NoPartition:
            stages = partition_chain(sizes, parts)  # the fullest is refused below
    elif config.sharding_strategy == "memory_balanced":
        total = max(1, sum(sizes))
        middle = [2 * end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
        stages = tuple(min(parts - 1, m * parts // (2 * total)) for m in middle)
    else:
        stages = tuple(i * parts // len(layers) for i in range(len(layers)))
    held = stage_bytes(sizes, stages, parts)
    if limit is not None and max(held, default=0) > limit:
        fullest = held.index(max(held))
        names = [(f"layer {i}", s) for i, s in enumerate(sizes) if stages[i] == fullest]
        raise InfeasibleBudget(limit, held[fullest], names, f"device {fullest}")
    return stages


def stage_bytes(sizes: Sequence[int], stages: Sequence[int], parts: int) -> list[int]:
    """Sum of the sizes in each stage."""
    held = [0] * parts
    for size, stage in zip(sizes, stages, strict=True):
        held[stage] += size
    return held


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of its own on the device, on a CPU that stands for several devices too."""
    return tensor.detach().to(device, copy=True)


def describe(held: int, limit: int) -> str:
    """How full, for people."""
    return f"{format_bytes(held)} of {format_bytes(limit)} ({held / limit:.0%})"


def _custom(config: TrainingMemoryConfig, count: int) -> tuple[int, ...]:
    assigned = config.custom_device_assignments or {}
    missing = [i for i in range(count) if i not in assigned]
    if missing:
        raise FxmemError(f"custom_device_assignments has no device for layer {missing[0]}")
    return tuple(assigned[i] for i in range(count))
