"""Costs from a device's data sheet, for a device that is not in this machine.

Roofline (Williams, Waterman, Patterson, CACM 2009): an operator takes the longer of its
arithmetic at the peak rate and its traffic at the memory's bandwidth, and a launch. Counts of
arithmetic come from torch's own flop counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from ..errors import UnsupportedDevice
from ..storages import map_storages
from .table import Cost


@dataclass(frozen=True)
class Device:
    """A device by its data sheet.

    Attributes
    ----------
    name : str
    memory_bytes : int
    bytes_per_second : float
        Bandwidth of its memory.
    flops : mapping from torch.dtype to float
        Dense arithmetic operations a second; float32 serves for dtypes not named.
    launch_seconds : float
        Least time of any operator.
    allocation_bytes : int
        Allocations are rounded up to a multiple of this.
    """

    name: str
    memory_bytes: int
    bytes_per_second: float
    flops: Mapping[torch.dtype, float] = field(compare=False)
    launch_seconds: float = 4e-6
    allocation_bytes: int = 512

    def flops_of(self, dtype: torch.dtype) -> float:
        """Operations a second in ``dtype``."""
        return self.flops.get(dtype, self.flops[torch.float32])


GIB = 2**30


def _gpu(name: str, memory: int, bandwidth: float, single: float, half: float) -> Device:
    flops = {torch.float32: single, torch.float16: half, torch.bfloat16: half}
    return Device(name, memory * GIB, bandwidth, flops)


#: Vendors' data sheets: dense rates, float32 without TF32, SXM modules where there are several.
DEVICES = {
    d.name: d
    for d in (
        _gpu("h200", 141, 4.8e12, 67e12, 989e12),
        _gpu("h100", 80, 3.35e12, 67e12, 989e12),
        _gpu("a100-80gb", 80, 2.039e12, 19.5e12, 312e12),
        _gpu("a100-40gb", 40, 1.555e12, 19.5e12, 312e12),
        _gpu("v100", 32, 0.9e12, 15.7e12, 125e12),
        _gpu("l4", 24, 0.3e12, 30.3e12, 121e12),
        _gpu("rtx4090", 24, 1.008e12, 82.6e12, 165.2e12),
        _gpu("rtx3090", 24, 0.936e12, 35.6e12, 71e12),
    )
}


def find_device(device: str | Device) -> Device:
    """A device by name.

    Raises
    ------
    UnsupportedDevice
        No data sheet by that name is known.
    """
    if isinstance(device, Device):
        return device
    if device.lower() not in DEVICES:
        raise UnsupportedDevice(
            f"no data sheet for {device!r}. Known: {', '.join(sorted(DEVICES))}; or give an "
            "fxmem.Device with its memory, bandwidth and rates."
        )
    return DEVICES[device.lower()]


class DatasheetCosts:
    """A `CostTable` from a data sheet; workspace is not known and counts as none."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, nodes: list[fx.Node]) -> dict[fx.Node, Cost]:
        """Cost of each node, by roofline."""
        if not nodes:
            return {}
        storages = map_storages(nodes[0].graph)
        costs = {}
        for node in nodes:
            touched = {*storages.read_by(node), *storages.made_at(node)}
            traffic = sum(storages.size[s] for s in touched) / self.device.bytes_per_second
            arithmetic = count_flops(node) / self.device.flops_of(_dtype_of(node))
            costs[node] = Cost(max(traffic, arithmetic) + self.device.launch_seconds, 0)
        return costs


def count_flops(node: fx.Node) -> int:
    """Arithmetic operations of a call by torch's counter; one an element where it has none."""
    target = node.target
    value = node.meta.get("val")
    if isinstance(target, OpOverload) and target.overloadpacket in flop_registry:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        return int(flop_registry[target.overloadpacket](*args, **kwargs, out_val=value))
    return sum(v.numel() for v in _tensors(value))


def _dtype_of(node: fx.Node) -> torch.dtype:
    found = _tensors(node.meta.get("val"))
    return found[0].dtype if found else torch.float32


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]
