"""Solvers and budgets side by side, as rows, as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .budget import Budget, format_bytes
from .measure import MeasuredStep
from .plan import Plan

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
