"""What the commands share: arguments, models by name, errors as one line, files."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console, RenderableType

from ..errors import BudgetSyntaxError, FxmemError
from ..fitted import ExampleInputs

_WIDE = 200  # columns of a table that is piped

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
DeviceOption = Annotated[
    str | None, typer.Option(help="Plan for this device, here or not: h100, rtx4090, ...")
]
OffloadOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIRECTORY", help="On disk: move values there and back where that is quicker."
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="Write memory over time: .json for Perfetto, .pickle for PyTorch's viewer."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
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
    except KeyboardInterrupt as error:
        # Within a search the first Ctrl-C only ends that; this one came elsewhere.
        typer.echo("fxmem: interrupted", err=True)
        raise typer.Exit(130) from error
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
    FxmemError
        It failed by itself.
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
    try:
        made = factory() if callable(factory) else factory
    except FxmemError:
        raise
    except Exception as error:
        raise FxmemError(f"{name} failed: {type(error).__name__}: {error}") from error
    if not (
        isinstance(made, tuple)
        and len(made) == 2
        and isinstance(made[0], torch.nn.Module)
        and isinstance(made[1], (tuple, list, Mapping))
    ):
        raise typer.BadParameter(f"{name!r} must return (module, example_inputs)")
    module, inputs = made
    return module, inputs if isinstance(inputs, Mapping) else tuple(inputs)


def show(what: RenderableType) -> None:
    """Print a table; where nobody's terminal is its width, no row is broken."""
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=_WIDE)
    console.print(what)


def write_file(path: Path, write: Callable[[Path], None], quiet: bool = False) -> None:
    """Let ``write`` write ``path``, in a folder that is made, and say so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise FxmemError(f"cannot write {path}: {error.strerror or error}") from error
    typer.echo(f"wrote {path}", err=quiet)
