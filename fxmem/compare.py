"""Every solver on every budget, from one trace of the module."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx
from torch.utils._pytree import tree_leaves

from .api import optimize, rehearse
from .arguments import Progress, check_solver, costs_for
from .budget import Budget
from .comparison import ComparedPlan, Comparison
from .costs import CostTable, Device
from .errors import FxmemError, InfeasibleBudget
from .fitted import ExampleInputs, FittedModule
from .measure import MeasuredStep, measure
from .plan import Plan
from .planning import Options, plan_step
from .residents import Holder
from .session import Session
from .solvers.remat import SOLVERS


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
