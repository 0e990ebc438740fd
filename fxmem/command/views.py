"""Commands that look: compare solvers, draw the graph, write the page, list devices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from ..api import plan as make_plan
from ..budget import Budget, format_bytes
from ..compare import compare as make_comparison
from ..costs import DEVICES
from ..errors import FxmemError
from ..plan import Plan
from .parts import (
    BudgetOption,
    DeviceOption,
    Json,
    Model,
    OffloadOption,
    OptimizerOption,
    Seed,
    SolverOption,
    TimeLimit,
    TraceOption,
    load_model,
    show,
    told,
    write_file,
)
from .terminal import Bars

#: A factory, or a plan that was saved.
Planned = Annotated[
    str,
    typer.Argument(metavar="MODULE:FACTORY|PLAN.json", help="A model to plan, or a saved plan."),
]


def compare(
    model: Model,
    budgets: Annotated[
        list[str] | None,
        typer.Option("--budget", "-b", help="Repeat for more; 0.9, 0.7 and 0.5 by default."),
    ] = None,
    solvers: Annotated[
        list[str] | None, typer.Option("--solver", "-s", help="Repeat for more; all by default.")
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measure", help="Train with each plan, and measure it.")
    ] = False,
    device: DeviceOption = None,
    optimizer: OptimizerOption = None,
    time_limit: TimeLimit = 10.0,
    seed: Seed = 0,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the frontier (.svg, .png).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page (.html).")] = None,
) -> None:
    """Plan with every solver on every budget, side by side."""
    with told():
        asked = [Budget.parse(b) for b in budgets or ("0.9", "0.7", "0.5")]
        torch.manual_seed(seed)
        module, inputs = load_model(model)
        with Bars(time_limit) as bars:
            found = make_comparison(
                module,
                asked,
                inputs,
                solvers or None,
                measure=measured,
                device=device,
                optimizer=optimizer,
                time_limit=time_limit,
                progress=bars,
                seed=seed,
            )
        if as_json:
            typer.echo(json.dumps(found.to_rows(), indent=1))
        else:
            show(found)
        if plot is not None:
            write_file(plot, found.plot, quiet=as_json)
        if report is not None:
            write_file(report, found.report, quiet=as_json)


def render(
    model: Planned,
    path: Annotated[Path, typer.Argument(help="Ends in .svg, .png, .pdf or .dot.")],
    budget: BudgetOption = None,
    level: Annotated[
        str | None, typer.Option(help="layers, modules or operators; by size if left out.")
    ] = None,
    trace: TraceOption = None,
    device: DeviceOption = None,
    optimizer: OptimizerOption = None,
    solver: SolverOption = "auto",
    offload: OffloadOption = None,
    time_limit: TimeLimit = 30.0,
    seed: Seed = 0,
) -> None:
    """Draw the step's graph: what is kept, and what is computed again."""
    with told():
        plan = _planned(model, budget, device, optimizer, solver, offload, time_limit, seed)
        write_file(path, lambda where: plan.render(where, level))
        if trace is not None:
            write_file(trace, plan.trace)


def report(
    model: Planned,
    path: Annotated[Path, typer.Argument(help="Ends in .html.")] = Path("plan.html"),
    budget: BudgetOption = None,
    device: DeviceOption = None,
    optimizer: OptimizerOption = None,
    solver: SolverOption = "auto",
    offload: OffloadOption = None,
    time_limit: TimeLimit = 30.0,
    seed: Seed = 0,
) -> None:
    """Write one page about a plan; it opens in any browser, without a network."""
    with told():
        plan = _planned(model, budget, device, optimizer, solver, offload, time_limit, seed)
        write_file(path, plan.report)


def devices(as_json: Json = False) -> None:
    """List the devices of this machine, and those that `--device` knows."""
    rows = [*_here(), *_known()]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table(title="Devices", title_justify="left")
    for name, side in (("device", "left"), ("where", "left"), ("memory", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_column("bandwidth", justify="right")
    table.add_column("costs")
    for row in rows:
        speed = row["bytes_per_second"]
        table.add_row(
            row["name"],
            row["where"],
            format_bytes(row["memory_bytes"]) if row["memory_bytes"] else "",
            f"{speed * 1e-12:.2f} TB/s" if speed else "",
            row["costs"],
        )
    show(table)


def _planned(
    model: str,
    budget: str | None,
    device: str | None,
    optimizer: str | None,
    solver: str,
    offload: Path | None,
    time_limit: float,
    seed: int,
) -> Plan:
    """The plan in a file, or a new one for a model."""
    limit = Budget.parse(budget)
    if model.endswith(".json"):
        try:
            return Plan.load(model)
        except OSError as error:
            raise FxmemError(f"cannot read {model}: {error.strerror or error}") from error
    torch.manual_seed(seed)
    module, inputs = load_model(model)
    with Bars(time_limit) as bars:
        return make_plan(
            module,
            limit,
            inputs,
            device=device,
            optimizer=optimizer,
            solver=solver,
            offload=offload,
            time_limit=time_limit,
            progress=bars,
            seed=seed,
        )


def _here() -> list[dict[str, Any]]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows = [_device_row("cpu", "here", memory, None, "measured")]
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        name = f"cuda:{i} ({found.name})"
        rows.append(_device_row(name, "here", found.total_memory, None, "measured"))
    return rows


def _known() -> list[dict[str, Any]]:
    return [
        _device_row(d.name, "data sheet", d.memory_bytes, d.bytes_per_second, "from the data sheet")
        for d in DEVICES.values()
    ]


def _device_row(
    name: str, where: str, memory: int, speed: float | None, costs: str
) -> dict[str, Any]:
    return {
        "name": name,
        "where": where,
        "memory_bytes": memory,
        "bytes_per_second": speed,
        "costs": costs,
    }
