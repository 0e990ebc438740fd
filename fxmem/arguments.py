"""What the arguments of `optimize` and `plan` stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .budget import Budget
from .costs import DEVICES, CostTable, DatasheetCosts, Device, MeasuredCosts, find_device
from .errors import FxmemError, UnsupportedDevice
from .solvers.remat import SOLVERS

#: Called with (stage, details) as planning goes on.
Progress = Callable[[str, Mapping[str, Any]], None]


def read_budgets(
    budget: Any, model: torch.nn.Module, runs: bool = True
) -> tuple[Budget, tuple[tuple[str, Budget], ...]]:
    """One budget, or name and budget of each of several devices.

    Parameters
    ----------
    budget : any
        As of `optimize`.
    model : torch.nn.Module
    runs : bool
        Is the plan to run here, on these devices?

    Raises
    ------
    BudgetSyntaxError
    UnsupportedDevice
        The module is not on that device, or several are not logical devices of the CPU.
    """
    if not isinstance(budget, Mapping):
        return Budget.parse(budget), ()
    devices = Budget.parse_devices(budget)
    own = {t.device.type for t in (*model.parameters(), *model.buffers())} - {"meta"}
    named = {name.partition(":")[0] for name in devices}
    if len(devices) == 1:
        if runs and own and named != own:
            raise UnsupportedDevice(
                f"the module is on {', '.join(sorted(own))}, the budget for {next(iter(devices))}: "
                "move the module there, or name its own device."
            )
        return next(iter(devices.values())), ()
    if runs and own | named != {"cpu"}:
        raise UnsupportedDevice(
            f"one process drives several devices on the CPU only, as logical devices (cpu:0, "
            f"cpu:1), not on {', '.join(sorted((own | named) - {'cpu'}))}. Give fxmem.pipeline "
            "the budgets, with one process for each device."
        )
    return Budget(), tuple(devices.items())


def check_solver(solver: str) -> None:
    """Raise where there is no solver of that name."""
    if solver not in SOLVERS:
        raise FxmemError(f"solver={solver!r} is not known; give one of {', '.join(SOLVERS)}.")


def costs_for(
    model: torch.nn.Module,
    device: str | Device | None,
    costs: str | CostTable = "measured",
    cache: bool = True,
    progress: Progress | None = None,
) -> CostTable:
    """Costs measured on the module's own device, or from another one's data sheet.

    Raises
    ------
    UnsupportedDevice
        No data sheet by that name, or a meta module without a device.
    """
    if device is not None:
        return DatasheetCosts(find_device(device))
    if is_on_meta(model) and isinstance(costs, str):
        raise UnsupportedDevice(
            "the module is on the meta device, where nothing can be measured: name the device "
            f"to plan for, one of {', '.join(sorted(DEVICES))}, or give an fxmem.Device."
        )
    return cost_table(costs, model, cache, progress)


def cost_table(
    costs: str | CostTable,
    model: torch.nn.Module,
    cache: bool,
    progress: Progress | None,
) -> CostTable:
    """Costs measured on the module's own device, unless a table is given."""
    if not isinstance(costs, str):
        return costs
    if costs != "measured":
        raise FxmemError(f"costs={costs!r} is not known; give 'measured' or a CostTable.")

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress("measure", {"done": done, "total": total})

    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    return MeasuredCosts(device, cache=cache, progress=tell)


def is_on_meta(model: torch.nn.Module) -> bool:
    """Was the module built without memory for its weights?"""
    return any(p.is_meta for p in model.parameters())


def read_directory(offload: str | Path | None, model: torch.nn.Module) -> str | None:
    """The directory of the disk tier.

    Raises
    ------
    FxmemError
        There is no such tier for the module's device.
    """
    if offload is None:
        return None
    kinds = {t.device.type for t in (*model.parameters(), *model.buffers())} - {"meta"}
    if kinds - {"cpu"}:
        where = ", ".join(sorted(kinds))
        raise FxmemError(f"offload moves values of modules on the CPU; this one is on {where}.")
    if str(offload) == "host":
        raise FxmemError(
            'offload="host" is for devices with memory of their own; on the CPU give a directory.'
        )
    if not Path(offload).is_dir():
        raise FxmemError(f"offload={str(offload)!r} is no directory; make it, or give another.")
    return str(Path(offload).absolute())
