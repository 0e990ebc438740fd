"""Costs by operator call: what they are, how a call is named, and the file they are kept in."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.fx as fx

from ..files.store import BadFile, cache_directory, read_json, write_json
from .layouts import Layout, Layouts

_LONGEST_SECONDS, _MOST_BYTES = 1e6, 1 << 60


@dataclass(frozen=True)
class Cost:
    """What one call of an operator takes.

    Attributes
    ----------
    seconds : float
    workspace_bytes : int
        Bytes held at the worst moment of the call beyond its outputs.
    results : Layouts
        How its results really lie in memory, where that is not what torch's rules for fake
        tensors say; else empty.
    """

    seconds: float
    workspace_bytes: int
    results: Layouts = ()


class CostTable(Protocol):
    """Anything that knows what operator calls cost."""

    def __call__(self, nodes: list[fx.Node]) -> dict[fx.Node, Cost]:
        """Cost of each node."""
        ...


class RecordedCosts:
    """What a table told, for others that are to hear the same.

    Parameters
    ----------
    table : CostTable, optional
        Asked for what is not known; without one that costs nothing.
    known : dict
        Cost of each call, by `operator_key`.
    """

    def __init__(self, table: CostTable | None, known: dict[str, Cost] | None = None) -> None:
        self.table, self.known = table, {} if known is None else known

    def __call__(self, nodes: list[fx.Node]) -> dict[fx.Node, Cost]:
        """Cost of each node."""
        keys = {node: operator_key(node) for node in nodes}
        missing = [node for node, key in keys.items() if key not in self.known]
        if missing and self.table is not None:
            self.known |= {keys[node]: cost for node, cost in self.table(missing).items()}
        return {node: self.known.get(key, Cost(0.0, 0)) for node, key in keys.items()}


def operator_key(node: fx.Node) -> str:
    """Name of a call: operator, and dtype, shape and strides of each tensor argument."""
    parts = [_describe(a) for a in node.args]
    parts += [f"{key}={_describe(value)}" for key, value in sorted(node.kwargs.items())]
    # A function of ours by its name: its text would hold an address.
    target = node.target.__name__ if isfunction(node.target) else node.target
    return f"{target}({', '.join(parts)})"


def _describe(argument: Any) -> str:
    if isinstance(argument, fx.Node):
        return _describe(argument.meta.get("val"))
    if isinstance(argument, torch.Tensor):
        dtype = str(argument.dtype).removeprefix("torch.")
        return f"{dtype}{list(argument.shape)}/{list(argument.stride())}@{argument.device}"
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(_describe(a) for a in argument) + "]"
    return repr(argument)


def device_key(device: torch.device) -> str:
    """Name of the device and of everything that changes the cost of an operator on it."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{platform.machine()}-{platform.processor() or 'cpu'}"
    return f"{name}-threads{torch.get_num_threads()}-torch{torch.__version__}".replace(" ", "_")


class CostFile:
    """Costs of one device on disk: JSON, read whole, replaced whole.

    An unreadable or foreign file counts as empty, and an unwritable folder as no cache.
    """

    def __init__(self, device: torch.device, directory: Path | None = None) -> None:
        safe = "".join(c if c.isalnum() or c in "._+-" else "_" for c in device_key(device))
        self.path = (directory or cache_directory()) / "costs" / f"{safe}.json"

    def read(self) -> dict[str, Cost]:
        """All costs in the file; an entry that is none is passed over."""
        try:
            rows = read_json(self.path)
        except (OSError, BadFile):
            return {}
        if not isinstance(rows, dict):
            return {}
        return {key: _cost(row) for key, row in rows.items() if _is_cost(row)}

    def add(self, costs: dict[str, Cost]) -> None:
        """Write ``costs`` beside what is there."""
        rows = {**self.read(), **costs}
        found = {k: [c.seconds, c.workspace_bytes, c.results] for k, c in rows.items()}
        with contextlib.suppress(OSError):
            write_json(self.path, found)


def _cost(row: list[Any]) -> Cost:
    layouts = (r and Layout(r[0], tuple(r[1]), tuple(r[2])) for r in row[2])
    return Cost(float(row[0]), row[1], tuple(layouts))


def _is_cost(row: Any) -> bool:
    """Seconds and bytes that a machine could take; what is beyond is damage."""
    return (
        isinstance(row, list)
        and len(row) == 3
        and type(row[0]) in (int, float)
        and type(row[1]) is int
        and 0 <= row[0] < _LONGEST_SECONDS
        and 0 <= row[1] < _MOST_BYTES
        and isinstance(row[2], list)
        and all(r is None or _is_layout(r) for r in row[2])
    )


def _is_layout(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 3
        and isinstance(getattr(torch, str(row[0]), None), torch.dtype)
        and all(isinstance(numbers, list) for numbers in row[1:])
        and len(row[1]) == len(row[2])
        and all(type(n) is int and 0 <= n < _MOST_BYTES for n in row[1] + row[2])
    )
