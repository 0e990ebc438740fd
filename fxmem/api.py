"""What users call: `optimize` and `plan`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from .arguments import (
    Progress,
    check_solver,
    cost_table,
    costs_for,
    is_on_meta,
    read_budgets,
    read_directory,
)
from .budget import Budget
from .costs import CostTable, Device
from .errors import FxmemError
from .fitted import ExampleInputs, FittedModule, fit
from .plan import Plan
from .planning import Options
from .residents import Holder
from .session import Session

#: How the planned graphs run: operator by operator, or compiled further.
BACKENDS = ("eager", "inductor")


def optimize(
    model: torch.nn.Module,
    budget: int | str | float | Mapping[Any, Any] | Budget | None,
    example_inputs: ExampleInputs | None = None,
    *,
    optimizer: torch.optim.Optimizer | str | None = None,
    solver: str = "auto",
    backend: str = "eager",
    offload: str | Path | None = None,
    pool: bool = True,
    time_limit: float = 30.0,
    costs: str | CostTable = "measured",
    cache: bool = True,
    progress: Progress | None = None,
    seed: int = 0,
) -> FittedModule:
    """Make a module train inside a byte budget.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; the loss may be inside (forward returns a scalar) or outside.
    budget : int, str, float, Budget, mapping or None
        Peak bytes of a whole training step: parameters, buffers, gradients, optimizer state,
        inputs, activations and workspace. ``"6GiB"``, a number of bytes, or a share in
        (0, 1] of the unoptimised step's peak, the largest of the steps so far. None: no limit.
        A mapping from device to any of these cuts the step into a stage for each, and holds each
        budget on its own; a share is then one of the whole step's peak on one device. On the CPU
        these are logical devices, ``{"cpu:0": "40MiB", "cpu:1": "20MiB"}``: they share one
        memory, what crosses is really copied, and bytes count on the device whose stage asked for
        them. What the caller does between forward and backward counts on the last, inputs that
        nothing reads on the first.
    example_inputs : tuple or dict, optional
        Given, the plan is made now, without running the module's operators; left out, at
        the first call.
    optimizer : torch.optim.Optimizer or str, optional
        Its state is charged, even before its first step.
    solver : str
        A name from ``fxmem.solvers.remat.SOLVERS``.
    backend : {"eager", "inductor"}
        Run our graphs operator by operator, or compile them further.
    offload : str or Path, optional
        A directory on disk: values may be moved there and back where that takes less time than
        computing them again. For modules on the CPU.
    pool : bool
        Write over inputs that die, and take the step's memory from one arena, at offsets
        chosen ahead of time.
    time_limit : float
        Seconds for the solver.
    costs : "measured" or CostTable
    cache : bool
        Keep measured costs and schedules on disk, and look there first.
    progress : callable, optional
        Called with (stage, details) as planning goes on.
    seed : int
        Of the solver.

    Returns
    -------
    torch.nn.Module
        What ``torch.compile`` returns, with ``.plan`` and ``.report()``.

    Raises
    ------
    InfeasibleBudget
        No plan fits; says the least bytes found and what stands in the way, and on which
        device where there are several.
    BudgetSyntaxError, TraceError
    UnsupportedDevice
        A mapping of several devices that are not logical devices of the CPU.
    """
    check_solver(solver)
    if backend not in BACKENDS:
        raise FxmemError(f"backend={backend!r} is not known; give one of {', '.join(BACKENDS)}.")
    if offload is not None and backend != "eager":
        raise FxmemError(f"offload works with backend='eager', not with {backend!r}.")
    one, several = read_budgets(budget, model)
    if several and (backend != "eager" or offload is not None):
        raise FxmemError("budgets for several devices work with backend='eager' and no offload.")
    options = Options(
        budget=one,
        devices=several,
        costs=cost_table(costs, model, cache, progress),
        solver=solver,
        time_limit=time_limit,
        # Inductor chooses by itself what to write over.
        reuse=pool and backend != "inductor",
        # Logical devices share one memory, and no arena divides it.
        pool=pool and not several,
        offload=read_directory(offload, model),
        seed=seed,
        cache=cache,
        progress=progress,
    )
    fitted = fit(model, Session(options, Holder(model, optimizer), backend))
    if example_inputs is not None:
        fitted.rehearse(example_inputs)
    return fitted


def plan(
    model: torch.nn.Module,
    budget: int | str | float | Mapping[Any, Any] | Budget | None,
    example_inputs: ExampleInputs,
    *,
    device: str | Device | None = None,
    optimizer: torch.optim.Optimizer | str | None = None,
    solver: str = "auto",
    offload: str | Path | None = None,
    pool: bool = True,
    time_limit: float = 30.0,
    costs: str | CostTable = "measured",
    cache: bool = True,
    progress: Progress | None = None,
    seed: int = 0,
) -> Plan:
    """Plan a step without running anything of the module.

    Parameters
    ----------
    model : torch.nn.Module
        May be built under ``torch.device("meta")``.
    budget, optimizer, solver, offload, pool, time_limit, costs, cache, progress, seed
        As for `optimize`.
    example_inputs : tuple or dict
        Real or meta tensors; only their shapes and dtypes count.
    device : str or Device, optional
        A device that need not be in this machine, by the name of its data sheet. Costs then
        come from there, and workspace is not known. Left out: the module's own device, with
        costs measured on it.

    Raises
    ------
    InfeasibleBudget, BudgetSyntaxError, TraceError
    UnsupportedDevice
        No data sheet by that name, or a meta module without a device.
    """
    check_solver(solver)
    one, several = read_budgets(budget, model, runs=False)
    if several and offload is not None:
        raise FxmemError("budgets for several devices work with no offload.")
    options = Options(
        budget=one,
        devices=several,
        costs=costs_for(model, device, costs, cache, progress),
        solver=solver,
        time_limit=time_limit,
        reuse=pool,
        offload=read_directory(offload, model),
        seed=seed,
        cache=cache,
        progress=progress,
    )
    session = Session(options, Holder(model, optimizer), proves=False)
    rehearse(model, session, example_inputs, optimizer)
    assert session.plan is not None
    return session.plan


def rehearse(
    model: torch.nn.Module,
    session: Session,
    example_inputs: ExampleInputs,
    optimizer: torch.optim.Optimizer | str | None,
) -> None:
    """Let ``session`` plan for ``example_inputs``; the module may lie on meta."""
    if is_on_meta(model):
        _rehearse_on_fakes(model, session, example_inputs, optimizer)
    else:
        fit(model, session).rehearse(example_inputs)


def _rehearse_on_fakes(
    model: torch.nn.Module,
    session: Session,
    inputs: ExampleInputs,
    optimizer: torch.optim.Optimizer | str | None,
) -> None:
    """Trace a meta module as if it lay on the CPU: some losses lose their gradient on meta."""
    twin, made = copy.deepcopy(model), {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in made:
            empty = torch.empty_like(tensor, device="cpu", requires_grad=False)
            if isinstance(tensor, torch.nn.Parameter):
                empty = torch.nn.Parameter(empty, tensor.requires_grad)
            made[tensor] = empty
        return made[tensor]

    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in twin.modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table in tables:
                table.update({k: fake(v) for k, v in table.items() if v is not None})
        session.residents = Holder(twin, optimizer)
        fit(twin, session).rehearse(tree_map_only(torch.Tensor, fake, inputs))


__all__ = ["FittedModule", "optimize", "plan"]
