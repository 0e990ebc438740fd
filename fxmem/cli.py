"""The `fxmem` command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from .api import optimize
from .api import plan as make_plan
from .budget import Budget, format_bytes
from .command import views
from .command.parts import (
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
from .command.ranks import launched, train_ranks
from .command.terminal import Bars
from .command.training import measured_peak, train_steps
from .demo import DemoResult, run_demo
from .errors import FxmemError
from .plan import Offload, Plan, Recompute
from .residents import OPTIMIZERS

app = typer.Typer(
    name="fxmem",
    help="Fit a PyTorch training step into a memory budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def plan(
    model: Model,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    optimizer: OptimizerOption = None,
    solver: SolverOption = "auto",
    offload: OffloadOption = None,
    time_limit: TimeLimit = 30.0,
    seed: Seed = 0,
    as_json: Json = False,
    save: Annotated[Path | None, typer.Option(help="Write the whole plan as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over time (.svg, .png).")] = None,
    trace: TraceOption = None,
) -> None:
    """Plan a training step and say what it will take."""
    with told():
        limit = Budget.parse(budget)
        torch.manual_seed(seed)
        module, inputs = load_model(model)
        with Bars(time_limit) as bars:
            found = make_plan(
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
        typer.echo(json.dumps(_row(found), indent=1) if as_json else found.summary())
        if save is not None:
            write_file(save, found.save, quiet=as_json)
        if plot is not None:
            write_file(plot, found.plot, quiet=as_json)
        if trace is not None:
            write_file(trace, found.trace, quiet=as_json)


@app.command()
def train(
    model: Model,
    budget: BudgetOption = None,
    steps: Annotated[int, typer.Option(min=1)] = 3,
    optimizer: Annotated[str, typer.Option(help="adamw, sgd, ...")] = "sgd",
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.01,
    solver: SolverOption = "auto",
    offload: OffloadOption = None,
    time_limit: TimeLimit = 30.0,
    seed: Seed = 0,
    as_json: Json = False,
    schedule: Annotated[str, typer.Option(help="Under torchrun: 1f1b, gpipe, ...")] = "1f1b",
    microbatches: Annotated[int, typer.Option(min=1, help="Under torchrun.")] = 8,
) -> None:
    """Train a few steps on the example inputs, and measure one.

    Under torchrun the model is cut into stages over the processes, and --budget may name one
    budget for each of them, separated by commas.
    """
    with told():
        if optimizer not in OPTIMIZERS:
            raise typer.BadParameter(
                f"{optimizer!r} is none of {', '.join(OPTIMIZERS)}", param_hint="--optimizer"
            )
        if launched():
            train_ranks(
                model, budget, steps, optimizer, rate, as_json, seed, schedule=schedule,
                microbatches=microbatches, solver=solver, offload=offload, time_limit=time_limit,
            )  # fmt: skip
            return
        limit = Budget.parse(budget)
        torch.manual_seed(seed)
        module, inputs = load_model(model)
        chosen = OPTIMIZERS[optimizer](module.parameters(), lr=rate)
        with Bars(time_limit) as bars:
            fitted = optimize(
                module, limit, inputs, optimizer=chosen, solver=solver, offload=offload,
                time_limit=time_limit, progress=bars, seed=seed,
            )  # fmt: skip
        rows = []
        for row in train_steps(fitted, chosen, inputs, steps):
            rows.append(row)
            if not as_json:
                typer.echo(
                    f"step {row['step']}  loss {row['loss']:.6g}  {row['seconds'] * 1e3:.1f} ms"
                )
        peak = measured_peak(fitted, chosen, inputs)
        plan = fitted.plan
        allowed = plan.budget_bytes if plan else None
        if as_json:
            told_of = {"steps": rows, "measured_peak_bytes": peak, "budget_bytes": allowed}
            typer.echo(json.dumps(told_of, indent=1))
        else:
            against = "no budget" if allowed is None else f"budget {format_bytes(allowed)}"
            typer.echo(f"peak {format_bytes(peak)} measured, {against}")
        if allowed is not None and peak > allowed:
            raise FxmemError("the step measured over its budget.")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the plan.")] = Path("out"),
    steps: Annotated[int, typer.Option(min=2)] = 20,
    share: Annotated[float, typer.Option(help="Of the plain step's peak.")] = 0.5,
    time_limit: TimeLimit = 30.0,
    layers: Annotated[int, typer.Option(min=1, hidden=True)] = 12,
    width: Annotated[int, typer.Option(min=1, hidden=True)] = 192,
) -> None:
    """Train GPT-2 plain and under half of its memory, and draw both."""
    with told():
        Budget(share=share)  # says what is wrong with it before minutes of work
        out.mkdir(parents=True, exist_ok=True)
        with Bars(time_limit) as bars:
            result = run_demo(steps, share, layers, width, time_limit=time_limit, progress=bars)
        show(_demo_table(result))
        for line in _verdicts(result):
            typer.echo(line)
        write_file(out / "plan.json", result.plan.save)
        write_file(out / "plan.png", result.plan.plot)
        write_file(out / "memory.png", _steps_picture(result))
        if not result.passed:
            raise FxmemError("the demo failed: see the lines marked NO above.")


def _demo_table(result: DemoResult) -> Table:
    """Peaks, times and losses of both ways, in two columns."""
    table = Table(title=f"GPT-2, {len(result.plain.losses)} steps with AdamW", title_justify="left")
    table.add_column("")
    table.add_column("plain", justify="right")
    table.add_column("fxmem", justify="right")
    ways = (result.plain, result.fitted)
    table.add_row("peak, measured", *(format_bytes(way.peak_bytes) for way in ways))
    table.add_row("median step", *(f"{way.median_seconds * 1e3:.0f} ms" for way in ways))
    table.add_row("first loss", *(f"{way.losses[0]:.6f}" for way in ways))
    table.add_row("last loss", *(f"{way.losses[-1]:.6f}" for way in ways))
    return table


def _verdicts(result: DemoResult) -> tuple[str, ...]:
    """One line for each thing that the demo is to show."""
    again = sum(d.times for d in result.plan.decisions.values() if isinstance(d, Recompute))
    recorded, timed = len(result.fitted.recorded), len(result.fitted.seconds)
    return (
        f"budget       {format_bytes(result.budget_bytes)}: "
        f"{'kept' if result.budget_kept else 'NO, exceeded'} in all {recorded} recorded steps; "
        f"peak predicted {format_bytes(result.plan.peak_bytes)}",
        f"time         {result.slowdown:.2f} times the plain step's (median of {timed} steps each, "
        f"taken in turn); predicted {result.plan.overhead:+.1%}, {again} recomputations",
        f"loss         largest difference {result.loss_difference:g} over all steps"
        f"{'' if result.loss_difference == 0 else ': NO, it must be 0'}",
        f"parameters   largest difference {result.parameter_difference:g} at the end",
        f"plan         {result.plan.status} by {result.plan.solver}, at most "
        f"{result.plan.gap:.2%} above the bound",
    )


def _steps_picture(result: DemoResult) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        from .visualize import plot_steps

        steps = {"plain PyTorch": result.plain.settled, "fxmem": result.fitted.settled}
        plot_steps(steps, path, budget=result.budget_bytes)

    return draw


def _row(plan: Plan) -> dict[str, Any]:
    """What machines want to know of a plan; the whole of it is written by --save."""
    kept = [k for k, v in asdict(plan).items() if isinstance(v, (int, float, str)) or v is None]
    again = [d.times for d in plan.decisions.values() if isinstance(d, Recompute)]
    return {
        **{name: getattr(plan, name) for name in kept},
        "overhead": plan.overhead,
        "gap": plan.gap,
        "decisions": len(plan.decisions),
        "recomputed_values": len(again),
        "recomputations": sum(again),
        "moved_values": sum(isinstance(d, Offload) for d in plan.decisions.values()),
        "transfers": len(plan.transfers),
    }


app.command()(views.compare)
app.command()(views.render)
app.command()(views.report)
app.command()(views.devices)

__all__ = ["app"]
