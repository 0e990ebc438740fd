"""``python -m fxmem.solvers.remat bench DIR``: a table of solvers on published instances."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .auto import SOLVERS
from .bench import COLUMNS, Row, bench, instances, to_json

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """Rematerialisation solvers on plain numbers."""


@app.command("bench")
def command(
    folder: Annotated[Path, typer.Argument(help="folder of instances (JSON)")],
    solver: Annotated[list[str] | None, typer.Option(help="solvers; all by default")] = None,
    budget: Annotated[list[float] | None, typer.Option(help="shares of the given peak")] = None,
    seconds: Annotated[float, typer.Option(help="time limit of each")] = 60.0,
    given_order: Annotated[bool, typer.Option(help="first runs keep the given order")] = False,
    seed: int = 0,
    only: Annotated[list[str] | None, typer.Option(help="names of instances begin so")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """Each solver at each budget: time increase, peak, bound, gap, seconds."""
    solvers = solver or list(SOLVERS)
    unknown = [name for name in solvers if name not in SOLVERS]
    if unknown:
        raise typer.BadParameter(f"no solver {', '.join(unknown)}; there are {', '.join(SOLVERS)}")
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder")
    if not instances(folder, only or ()):
        named = f" whose name begins with {' or '.join(only)}" if only else ""
        raise typer.BadParameter(f"{folder} holds no .json file{named}")
    out, rows = Console(), list[Row]()
    if not as_json:
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    try:
        for row in bench(
            folder, solvers, budget or [0.9, 0.8, 0.7], seconds, not given_order, seed, only or []
        ):
            rows.append(row)
            if not as_json:
                print("| " + " | ".join(row.cells()) + " |", flush=True)
    except ValueError as error:
        out.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    if as_json:
        print(to_json(rows))
    else:
        floors = dict((row.instance, row.floor) for row in rows)
        print("floors: " + ", ".join(f"{name} {floor:.3f}" for name, floor in floors.items()))


if __name__ == "__main__":
    app()
