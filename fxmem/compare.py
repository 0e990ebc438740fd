"""Every solver on every budget, from one trace of the module."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx
from torch.utils._pytree import tree_leaves

from .api import Progress, check_solver, costs_for, optimize, rehearse
from .budget import Budget, format_bytes
from .costs import CostTable, Device
from .errors import FxmemError, InfeasibleBudget
from .fitted import ExampleInputs, FittedModule
from .measure import MeasuredStep, measure
from .plan import Plan
from .planning import Options, plan_step
from .residents import Holder
from .session import Session
from .solvers.remat import SOLVERS

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ComparedPlan:
    """One solver on one budget.

    Attributes
    ----------
    solver : str
    budget : Budget
        As it was asked for.
    budget_bytes : int or None
    plan : Plan or None
        None: the solver found none within the budget.
    planning_seconds : float
    measured : MeasuredStep or None
    """

    solver: str
    budget: Budget
    budget_bytes: int | None
    plan: Plan | None
    planning_seconds: float
    measured: MeasuredStep | None = None

    @property
    def status(self) -> str:
        """``"optimal"``, ``"feasible"`` or ``"not found"``."""
        return self.plan.status if self.plan else "not found"

    @property
    def asked(self) -> str:
        """The budget in few letters."""
        if self.budget_bytes is None:
            return "none"
        share = self.budget.share
        size = format_bytes(self.budget_bytes)
        return size if share is None else f"{share:.0%} ({size})"

    def to_row(self, eager: MeasuredStep | None = None) -> dict[str, Any]:
        """Numbers alone, as JSON can hold them."""
        plan, measured = self.plan, self.measured
        return {
            "solver": self.solver,
            "budget": self.asked,
            "budget_bytes": self.budget_bytes,
            "status": self.status,
            "peak_bytes": plan.peak_bytes if plan else None,
            "seconds": plan.seconds if plan else None,
            "overhead": plan.overhead if plan else None,
            "gap": plan.gap if plan else None,
            "planning_seconds": self.planning_seconds,
            "measured_peak_bytes": measured.peak_bytes if measured else None,
            "measured_seconds": measured.seconds if measured else None,
            "measured_overhead": measured.seconds / eager.seconds - 1
            if measured and eager
            else None,
        }


@dataclass(frozen=True)
class Comparison:
    """Solvers and budgets side by side.

    Attributes
    ----------
    rows : tuple of ComparedPlan
    baseline_peak_bytes : int
        Predicted peak of the step as it is, residents included.
    baseline_seconds : float
        Predicted time of the step as it is.
    eager : MeasuredStep or None
        The module as it is, measured in turn with the plans.
    """

    rows: tuple[ComparedPlan, ...]
    baseline_peak_bytes: int
    baseline_seconds: float
    eager: MeasuredStep | None = None

    def to_rows(self) -> list[dict[str, Any]]:
        """Each row's numbers, as JSON can hold them."""
        return [row.to_row(self.eager) for row in self.rows]

    def to_markdown(self) -> str:
        """The table in Markdown."""
        names, lines = self._columns(), self._lines()
        rule = ["---"] * 3 + ["---:"] * (len(names) - 3)
        return "\n".join("| " + " | ".join(line) + " |" for line in (names, rule, *lines))

    def plot(self, path: str | Path) -> None:
        """Draw time against peak, one line a solver (.svg, .png, .pdf)."""
        from .visualize.frontier import plot_frontier

        plot_frontier(self, path)

    def report(self, path: str | Path) -> None:
        """Write one self-contained page: time against peak, and the table, to be sorted."""
        from .visualize import write_comparison

        write_comparison(self, path)

    def __str__(self) -> str:
        return self.to_markdown()

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(title=self._title(), title_justify="left")
        for i, name in enumerate(self._columns()):
            table.add_column(name, justify="left" if i < 3 else "right")
        for line in self._lines():
            table.add_row(*line)
        return table

    def _title(self) -> str:
        peak, seconds = format_bytes(self.baseline_peak_bytes), self.baseline_seconds
        title = f"As it is: {peak}, {seconds * 1e3:.1f} ms predicted"
        if self.eager is not None:
            title += f"; {format_bytes(self.eager.peak_bytes)}, "
            title += f"{self.eager.seconds * 1e3:.1f} ms measured"
        return title

    def _columns(self) -> list[str]:
        names = ["solver", "budget", "status", "peak", "time", "gap", "planned in"]
        return [*names, "measured peak", "measured time"] if self.eager else names

    def _lines(self) -> list[list[str]]:
        return [_line(row, self.eager) for row in self.rows]


def compare(
    model: torch.nn.Module,
    budgets: Sequence[int | str | float | Budget | None],
    example_inputs: ExampleInputs,
    solvers: Sequence[str] | None = None,
    *,
    measure: bool = False,
    device: str | Device | None = None,
    optimizer: torch.optim.Optimizer | str | None = None,
    time_limit: float = 30.0,
    costs: str | CostTable = "measured",
    cache: bool = True,
    repeats: int = 3,
    progress: Progress | None = None,
    seed: int = 0,
) -> Comparison:
    """Plan one step with every solver on every budget.

    Parameters
    ----------
    model, example_inputs, device, optimizer, time_limit, costs, cache, progress, seed
        As for `plan`; ``time_limit`` is for each cell of the table.
    budgets : sequence
        Each as for `plan`.
    solvers : sequence of str, optional
        Names from ``fxmem.solvers.remat.SOLVERS``; all of them by default.
    measure : bool
        Train with each plan, and with the module as it is, on a copy of the module: peak and
        median time of ``repeats`` steps, taken in turn.

    Raises
    ------
    FxmemError
        An unknown solver, no budget, or ``measure`` for a device that is not here.
    BudgetSyntaxError, TraceError, UnsupportedDevice
    """
    names = tuple(SOLVERS) if solvers is None else tuple(solvers)
    for name in names:
        check_solver(name)
    asked = [Budget.parse(b) for b in budgets]
    if not asked or not names:
        raise FxmemError("there is nothing to compare: give at least one budget and one solver.")
    if measure and device is not None:
        raise FxmemError("measure=True runs the module here; leave out the device.")
    options = Options(
        budget=Budget(),
        costs=costs_for(model, device, costs, cache, progress),
        time_limit=time_limit,
        seed=seed,
        cache=cache,
        progress=progress,
    )
    session = _Recorder(options, Holder(model, optimizer), proves=False)
    rehearse(model, session, example_inputs, optimizer)
    baseline = session.plan
    assert baseline is not None
    rows: list[ComparedPlan] = []
    for budget in asked:
        for name in names:
            options.tell("compare", done=len(rows), total=len(asked) * len(names))
            rows.append(_cell(session.traced, replace(options, budget=budget, solver=name)))
    eager = None
    if measure:
        rows, eager = _measured(rows, asked, model, example_inputs, optimizer, options, repeats)
    peak = baseline.baseline_peak_bytes
    return Comparison(tuple(rows), peak, baseline.baseline_seconds, eager)


class _Recorder(Session):
    """Keeps the traced graph for more plans."""

    traced: tuple[fx.GraphModule, int, int]

    def _plan_step(self, joint: fx.GraphModule, forward_outputs: int, resident_bytes: int) -> Any:
        self.traced = joint, forward_outputs, resident_bytes
        return super()._plan_step(joint, forward_outputs, resident_bytes)


def _cell(traced: tuple[fx.GraphModule, int, int], options: Options) -> ComparedPlan:
    start = time.perf_counter()
    plan: Plan | None
    try:
        plan = plan_step(*traced, options).plan
        limit = plan.budget_bytes
    except InfeasibleBudget as error:
        plan, limit = None, error.budget_bytes
    seconds = time.perf_counter() - start
    return ComparedPlan(options.solver, options.budget, limit, plan, seconds)


def _measured(
    rows: list[ComparedPlan],
    budgets: Sequence[Budget],
    model: torch.nn.Module,
    example_inputs: ExampleInputs,
    optimizer: torch.optim.Optimizer | str | None,
    options: Options,
    repeats: int,
) -> tuple[list[ComparedPlan], MeasuredStep]:
    """Each plan trains on one copy of the module, in turn with the module as it is."""
    twin = copy.deepcopy(model)
    ways: dict[int, torch.nn.Module] = {-1: twin}
    count = len(rows) // len(budgets)
    for i, row in enumerate(rows):
        if row.plan is not None:
            ways[i] = optimize(
                twin,
                budgets[i // count],
                example_inputs,
                optimizer=optimizer,
                solver=row.solver,
                costs=options.costs,
                time_limit=options.time_limit,
                cache=options.cache,
                seed=options.seed,
            )
    seen: dict[int, list[MeasuredStep]] = {i: [] for i in ways}
    for turn in range(repeats):
        for i, way in ways.items():
            options.tell("run", done=turn * len(ways) + len(seen[i]), total=repeats * len(ways))
            seen[i].append(_one_step(way, example_inputs))
    # No optimizer runs here; what its state takes is charged all the same.
    leaves = tree_leaves(example_inputs)
    state = Holder(twin, optimizer)(leaves) - Holder(twin)(leaves)
    found = {i: _middle(steps, state) for i, steps in seen.items()}
    told = [
        replace(row, plan=_plan_of(ways[i]), measured=found[i]) if i in ways else row
        for i, row in enumerate(rows)
    ]
    return told, found[-1]


def _one_step(way: torch.nn.Module, inputs: ExampleInputs) -> MeasuredStep:
    if not isinstance(inputs, Mapping):
        return measure(way, *inputs, repeats=1)
    return measure(_ByKeyword(way, tuple(inputs)), *inputs.values(), repeats=1)


class _ByKeyword(torch.nn.Module):
    """Hands its arguments on by these names."""

    def __init__(self, way: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.way, self.names = way, names

    def forward(self, *values: Any) -> Any:
        return self.way(**dict(zip(self.names, values, strict=True)))


def _plan_of(way: torch.nn.Module) -> Plan | None:
    assert isinstance(way, FittedModule)
    return way.plan


def _middle(steps: Sequence[MeasuredStep], state_bytes: int) -> MeasuredStep:
    """The median in time, with the highest peak of all, and ``state_bytes`` more throughout."""
    highest = max(steps, key=lambda step: step.peak_bytes)
    return MeasuredStep(
        highest.peak_bytes + state_bytes,
        highest.resident_bytes + state_bytes,
        statistics.median(step.seconds for step in steps),
        tuple((moment, held + state_bytes) for moment, held in highest.timeline),
    )


def _line(row: ComparedPlan, eager: MeasuredStep | None) -> list[str]:
    plan = row.plan
    cells = [row.solver, row.asked, row.status]
    if plan is None:
        cells += ["", "", ""]
    else:
        cells += [format_bytes(plan.peak_bytes), f"{1 + plan.overhead:.3f}", f"{plan.gap:.2%}"]
    cells.append(f"{row.planning_seconds:.1f} s")
    if eager is not None:
        seen = row.measured
        cells.append(format_bytes(seen.peak_bytes) if seen else "")
        cells.append(f"{seen.seconds / eager.seconds:.2f}" if seen else "")
    return cells
