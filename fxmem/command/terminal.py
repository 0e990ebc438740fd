"""Progress on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..budget import format_bytes

_STAGES = {
    "trace": "tracing",
    "costs": "looking up costs",
    "measure": "measuring operators",
    "solve": "solving",
    "planned": "compiling",
    "train": "training",
}


class Bars:
    """Progress on a terminal's standard error; silent elsewhere.

    An instance is the ``progress`` callback of `optimize`.

    Parameters
    ----------
    time_limit : float
        Seconds that the solver may take; its bar counts towards them.
    """

    def __init__(self, time_limit: float) -> None:
        console = Console(stderr=True)
        self.time_limit = time_limit
        self.stage = ""
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Bars:
        self.progress.start()
        self.task = self.progress.add_task("starting", total=None, note="")
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, stage: str, details: Mapping[str, Any]) -> None:
        """Show how far ``stage`` has come."""
        if stage != self.stage:
            self.stage = stage
            self.progress.reset(self.task, description=_STAGES.get(stage, stage), note="")
        done, total, note = _reading(stage, details, self.time_limit)
        self.progress.update(self.task, completed=done, total=total, note=note)


def _reading(
    stage: str, details: Mapping[str, Any], time_limit: float
) -> tuple[float, float | None, str]:
    """How much of a stage is done, of how much, and what to say about it."""
    if stage == "solve":
        note = (
            f"{details['time'] * 1e-6:.1f} ms (bound {details['bound'] * 1e-6:.1f} ms), "
            f"peak {format_bytes(details['peak'])}"
        )
        return details["seconds"], time_limit, note
    if "total" in details:
        note = f"{details['done']}/{details['total']}"
        if "loss" in details:
            note += f", loss {details['loss']:.3f}"
        return details["done"], details["total"], note
    counts = [f"{value} {name}" for name, value in details.items() if isinstance(value, int)]
    return 0, None, ", ".join(counts)
