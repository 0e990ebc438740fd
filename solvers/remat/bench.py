"""Solvers side by side on a folder of published instances."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .auto import solve
from .check import check
from .problem import RematProblem
from .warm import warm_up

COLUMNS = ("instance", "budget", "solver", "TDI", "peak", "bound", "gap", "seconds", "status")


@dataclass(frozen=True)
class Row:
    """One solver on one instance at one budget.

    Attributes
    ----------
    share : float
        Budget as a share of the peak in the given order.
    increase, bound : float
        Total duration increase over running every operator once, and the least that is
        possible as far as is proved, in percent.
    peak : float
        As a share of the peak in the given order.
    gap : float
        ``total_time / lower_bound - 1`` in percent.
    floor : float
        No budget below this share can be met.
    """

    instance: str
    share: float
    solver: str
    increase: float
    peak: float
    bound: float
    gap: float
    seconds: float
    status: str
    floor: float

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of `COLUMNS`."""
        found = self.status in ("optimal", "feasible")
        return (
            self.instance,
            f"{self.share:.0%}",
            self.solver,
            f"{self.increase:.2f} %" if found else "–",
            f"{self.peak:.1%}",
            f"{self.bound:.2f} %",
            f"{self.gap:.2f} %" if found else "–",
            f"{self.seconds:.1f}",
            self.status,
        )


def load(path: Path) -> RematProblem:
    """The instance in a JSON file with ``size``, ``time`` and ``edge``.

    Raises
    ------
    ValueError
        The file is no such instance.
    """
    try:
        data = json.loads(path.read_text())
        return RematProblem.from_edges(data["size"], data["time"], data["edge"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not an instance with size, time and edge: {error}") from error


def instances(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """Files of ``folder`` that end as instances do, and whose names begin with one of ``only``."""
    found = sorted(folder.glob("*.json"))
    return [path for path in found if not only or path.name.startswith(tuple(only))]


def bench(
    folder: Path,
    solvers: Sequence[str],
    shares: Sequence[float],
    seconds: float,
    reorder: bool,
    seed: int,
    only: Sequence[str] = (),
) -> Iterator[Row]:
    """A row for each instance, budget and solver, as soon as it is known.

    Every answer is replayed by `check` before it is reported.
    """
    warm_up()
    for path in instances(folder, only):
        problem = load(path)
        base, whole = check(problem, range(problem.count))
        for share in shares:
            budget = int(share * whole)
            for solver in solvers:
                began = clock.monotonic()
                answer = solve(
                    problem, budget, solver, time_limit=seconds, reorder=reorder, seed=seed
                )
                took = clock.monotonic() - began
                total, peak = check(problem, answer.sequence)
                if answer.status in ("optimal", "feasible") and peak > budget:
                    raise AssertionError(f"{solver} on {path.stem}: {peak} bytes over {budget}")
                yield Row(
                    path.stem, share, solver, 100 * (total / base - 1), peak / whole,
                    100 * (answer.lower_bound / base - 1), 100 * answer.gap, took,
                    answer.status, problem.floor / whole,
                )  # fmt: skip


def to_json(rows: Sequence[Row]) -> str:
    """Rows as a JSON list of objects."""
    return json.dumps([asdict(row) for row in rows], indent=1)
