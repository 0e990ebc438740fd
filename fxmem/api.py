"""What users call: `optimize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import exc as dynamo_exc
from torch._dynamo.eval_frame import OptimizedModule

from .budget import Budget
from .costs import CostTable, MeasuredCosts
from .errors import FxmemError, TraceError
from .pipeline import Options
from .plan import Plan
from .report import Report
from .residents import count_residents
from .session import OverBudget, Session

# A plan that measures over budget is made anew with the excess held back; twice is rare.
_MOST_PLANS = 4

ExampleInputs = tuple[Any, ...] | Mapping[str, Any]


class FittedModule(OptimizedModule):
    """What `optimize` returns: torch's own optimised module, with a plan."""

    @property
    def plan(self) -> Plan | None:
        """The plan in use; None before the first call."""
        return self._fxmem_session.plan

    def finish_watch(self) -> None:
        """Stop recording the allocator, if the last step was recorded."""
        self._fxmem_session.watch.finish()

    def report(self) -> Report:
        """Plan and measurement side by side."""
        self.finish_watch()
        return Report(tuple((s.plan, s.measured) for s in self._fxmem_session.steps))

    @property
    def _fxmem_session(self) -> Session:
        return self.__dict__["_fxmem"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = self._fxmem_session
        session.watch.finish()
        for _ in range(_MOST_PLANS):
            if session.stale:
                _compile_into(self, session)
            try:
                return self._call(*args, **kwargs)
            except OverBudget:
                continue
        raise FxmemError(
            f"the step measured over budget with {_MOST_PLANS} plans in a row; the allocator "
            "takes more than the plan predicts. Give a larger budget, and report this model."
        )

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except dynamo_exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, FxmemError):
                raise error.inner_exception.with_traceback(None) from None
            raise
        except dynamo_exc.TorchDynamoException as error:
            raise TraceError(
                f"torch.compile could not capture the module as one graph. {error}\n"
                "Move what it names out of the forward, or train that part without fxmem."
            ) from error


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
    if offload is not None:
        raise FxmemError("offload is not supported yet; leave it out.")
    options = Options(
        budget=Budget.parse(budget),
        costs=_cost_table(costs, model, cache, progress),
        solver=solver,
        time_limit=time_limit,
        reuse=pool,
        seed=seed,
        progress=progress,
    )

    def residents(inputs: Sequence[Any]) -> int:
        return count_residents(model, list(inputs), optimizer).total

    fitted = _compile_into(None, Session(options, residents, backend), model)
    if example_inputs is not None:
        _rehearse(fitted, example_inputs)
    return fitted


def _compile_into(
    fitted: FittedModule | None, session: Session, model: torch.nn.Module | None = None
) -> FittedModule:
    """Compile ``model`` (again) with a backend that Dynamo has not seen, so that it retraces."""
    session.stale = False
    module = fitted._orig_mod if fitted is not None else model

    def fxmem_backend(graph: Any, inputs: Any) -> Any:
        return session.backend(graph, inputs)

    compiled = torch.compile(module, backend=fxmem_backend, dynamic=False, fullgraph=True)
    if fitted is None:
        object.__setattr__(compiled, "__class__", FittedModule)
        compiled.__dict__["_fxmem"] = session
        return compiled  # type: ignore[return-value]
    fitted.dynamo_ctx = compiled.dynamo_ctx
    fitted._initialize()
    return fitted


def _rehearse(fitted: FittedModule, example_inputs: ExampleInputs) -> None:
    session = fitted._fxmem_session
    session.rehearsing = True
    try:
        with torch.enable_grad():
            if isinstance(example_inputs, Mapping):
                fitted(**example_inputs)
            else:
                fitted(*example_inputs)
    finally:
        session.rehearsing = False


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
