"""The `fxmem` command."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from .api import optimize
from .api import plan as make_plan
from .budget import Budget, format_bytes
from .demo import DemoResult, run_demo
from .errors import BudgetSyntaxError, FxmemError
from .fitted import ExampleInputs
from .measure import loss_of, measure
from .plan import Plan, Recompute
from .terminal import Bars

app = typer.Typer(
    name="fxmem",
    help="Fit a PyTorch training step into a memory budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="A callable that returns (module, example_inputs), such as fxmem.demo:gpt2.",
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option("--budget", "-b", help='"6GiB", "500 MB", 0.5 (a share of the peak); no limit.'),
]
OptimizerOption = Annotated[
    str | None, typer.Option(help="Charge the state of this optimizer: adamw, sgd, ...")
]
SolverOption = Annotated[str, typer.Option(help="A name from fxmem.solvers.remat.SOLVERS.")]
TimeLimit = Annotated[float, typer.Option(min=0.0, help="Seconds for the solver.")]
Seed = Annotated[int, typer.Option(help="Of the solver, and of random weights.")]


@contextmanager
def told() -> Iterator[None]:
    """Errors that fxmem raises on purpose are one message and a status, never a traceback."""
    try:
        with warnings.catch_warnings():
            # torch warns about its own use of itself; a budget missed is still told.
            warnings.filterwarnings("ignore", module="torch")
            yield
    except BudgetSyntaxError as error:
        raise typer.BadParameter(str(error), param_hint="--budget") from error
    except FxmemError as error:
        typer.echo(f"fxmem: {error}", err=True)
        raise typer.Exit(1) from error


def load_model(name: str) -> tuple[torch.nn.Module, ExampleInputs]:
    """Call the factory that ``package.module:factory`` names.

    Raises
    ------
    typer.BadParameter
        It cannot be imported, or gives something else than a module and its inputs.
    """
    where, colon, path = name.partition(":")
    if not (where and colon and path):
        raise typer.BadParameter(f"{name!r} is not of the form package.module:factory")
    # As `python -m` does, so that a factory in the working directory is found.
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        factory: Any = importlib.import_module(where)
        for part in path.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"cannot load {name!r}: {error}") from error
    made = factory() if callable(factory) else factory
    if not (
        isinstance(made, tuple)
        and len(made) == 2
        and isinstance(made[0], torch.nn.Module)
        and isinstance(made[1], (tuple, list, Mapping))
    ):
        raise typer.BadParameter(f"{name!r} must return (module, example_inputs)")
    module, inputs = made
    return module, inputs if isinstance(inputs, Mapping) else tuple(inputs)


@app.command()
def plan(
    model: Model,
    budget: BudgetOption = None,
    device: Annotated[str | None, typer.Option(help="Plan for this device: h100, ...")] = None,
    optimizer: OptimizerOption = None,
    solver: SolverOption = "auto",
    time_limit: TimeLimit = 30.0,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the whole plan as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over time (.svg, .png).")] = None,
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
                time_limit=time_limit,
                progress=bars,
                seed=seed,
            )
        typer.echo(json.dumps(_row(found), indent=1) if as_json else found.summary())
        if save is not None:
            _write(save, found.save, quiet=as_json)
        if plot is not None:
            _write(plot, found.plot, quiet=as_json)


@app.command()
def train(
    model: Model,
    budget: BudgetOption = None,
    steps: Annotated[int, typer.Option(min=1)] = 3,
    rate: Annotated[float, typer.Option(help="Learning rate of SGD.")] = 0.01,
    time_limit: TimeLimit = 30.0,
    seed: Seed = 0,
) -> None:
    """Train a few steps with SGD on the example inputs, and measure one."""
    with told():
        limit = Budget.parse(budget)
        torch.manual_seed(seed)
        module, inputs = load_model(model)
        if isinstance(inputs, Mapping):
            raise typer.BadParameter("train takes positional example inputs only, not a mapping")
        with Bars(time_limit) as bars:
            fitted = optimize(module, limit, inputs, time_limit=time_limit, progress=bars)
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        for step in range(steps):
            loss = loss_of(fitted(*inputs))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            typer.echo(f"step {step + 1}  loss {loss.item():.6g}")
        measured = measure(fitted, *inputs, repeats=1)
        allowed = fitted.plan.budget_bytes if fitted.plan else None
        against = "no budget" if allowed is None else f"budget {format_bytes(allowed)}"
        typer.echo(f"peak {format_bytes(measured.peak_bytes)} measured, {against}")
        if allowed is not None and measured.peak_bytes > allowed:
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
        Console(soft_wrap=True).print(_demo_table(result))
        for line in _verdicts(result):
            typer.echo(line)
        _write(out / "plan.json", result.plan.save)
        _write(out / "plan.png", result.plan.plot)
        _write(out / "memory.png", _steps_picture(result))
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
    }


def _write(path: Path, write: Callable[[Path], None], quiet: bool = False) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise FxmemError(f"cannot write {path}: {error.strerror or error}") from error
    typer.echo(f"wrote {path}", err=quiet)


__all__ = ["app"]
