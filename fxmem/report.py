"""Plan and measurement side by side."""

from __future__ import annotations

from dataclasses import dataclass

from .budget import format_bytes
from .plan import Plan


@dataclass(frozen=True)
class Report:
    """One row for each plan of a module: the plan, and the peak bytes of its first real step."""

    rows: tuple[tuple[Plan, int | None], ...]

    def __str__(self) -> str:
        return "\n\n".join(_row(plan, measured) for plan, measured in self.rows) or "no plan yet"


def _row(plan: Plan, measured: int | None) -> str:
    if measured is None:
        seen = "not measured yet: run a training step"
    else:
        error = plan.peak_bytes / measured - 1
        seen = f"{format_bytes(measured)}, predicted {error:+.2%} from it"
    return f"{plan.summary()}\nmeasured    {seen}"
