"""``python -m fxmem.solvers.packing bench DIR``: a table of published instances."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .bench import COLUMNS, Row, bench, compile_seconds, instances, to_json
from .problem import PackingProblemError

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """Packing on plain numbers."""


@app.command("bench")
def command(
    folder: Annotated[Path, typer.Argument(help="folder of instances (CSV)")],
    seconds: Annotated[float, typer.Option(help="time limit of each")] = 60.0,
    lowest: Annotated[bool, typer.Option(help="seek the lowest packing")] = False,
    capacity: Annotated[int | None, typer.Option(help="instead of the one in the name")] = None,
    alignment: Annotated[int, typer.Option(min=1, help="of all offsets")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="names of instances begin so")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for machines")] = False,
) -> None:
    """Each instance within its capacity: height, bound, ratio, status, seconds."""
    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is not a folder")
    if not instances(folder, only or ()):
        named = f" whose name begins with {' or '.join(only)}" if only else ""
        raise typer.BadParameter(f"{folder} holds no .csv file{named}")
    loading, rows = compile_seconds(), list[Row]()
    if not as_json:
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    try:
        for row in bench(folder, seconds, lowest, capacity, alignment, only or ()):
            rows.append(row)
            if not as_json:
                print("| " + " | ".join(row.cells()) + " |", flush=True)
    except PackingProblemError as error:
        Console().print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    if as_json:
        print(to_json(rows))
    else:
        total = sum(row.seconds for row in rows)
        print(f"in sum {total:.2f} s; loading or compiling kernels took {loading:.2f} s before")


if __name__ == "__main__":
    app()
