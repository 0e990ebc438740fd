"""What users call: `optimize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .budget import Budget
from .costs import CostTable, MeasuredCosts
from .errors import FxmemError
from .fitted import ExampleInputs, FittedModule, fit
from .pipeline import Options
from .residents import count_residents
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
    progress: Callable[[str, Mapping[str, Any]], None] | None = None,
    seed: int = 0,
) -> FittedModule:
    """Make a module train inside a byte budget.

    Parameters
    ----------
    model : torch.nn.Module
        Any module; the loss may be inside (forward returns a scalar) or outside.
    budget : int, str, float, Budget or None
        Peak bytes of a whole training step: parameters, buffers, gradients, optimizer state,
        inputs, activations and workspace. ``"6GiB"``, a number of bytes, or a share in
        (0, 1] of the unoptimised step's peak. None: no limit.
    example_inputs : tuple or dict, optional
        Given, the plan is made now, without running the module's operators; left out, at
        the first call.
    optimizer : torch.optim.Optimizer or str, optional
        Its state is charged, even before its first step.
    solver : str
        A name from ``fxmem.solvers.remat.SOLVERS``.
    backend : {"eager", "inductor"}
        Run our graphs operator by operator, or compile them further.
    time_limit : float
        Seconds for the solver.
    costs : "measured" or CostTable
    cache : bool
        Keep measured costs on disk.
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
        No plan fits; says the least bytes found and what stands in the way.
    BudgetSyntaxError, TraceError
    """
    if isinstance(budget, Mapping):
        raise FxmemError("budgets for several devices are not supported yet; give one budget.")
    if backend not in BACKENDS:
        raise FxmemError(f"backend={backend!r} is not known; give one of {', '.join(BACKENDS)}.")
    if offload is not None:
        raise FxmemError("offload is not supported yet; leave it out.")
    options = Options(
        budget=Budget.parse(budget),
        costs=_cost_table(costs, model, cache, progress),
        solver=solver,
        time_limit=time_limit,
        # Inductor chooses by itself what to write over.
        reuse=pool and backend != "inductor",
        seed=seed,
        progress=progress,
    )

    def residents(inputs: Sequence[Any]) -> int:
        return count_residents(model, list(inputs), optimizer).total

    fitted = fit(model, Session(options, residents, backend))
    if example_inputs is not None:
        fitted.rehearse(example_inputs)
    return fitted


def _cost_table(
    costs: str | CostTable,
    model: torch.nn.Module,
    cache: bool,
    progress: Callable[[str, Mapping[str, Any]], None] | None,
) -> CostTable:
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


__all__ = ["FittedModule", "optimize"]
