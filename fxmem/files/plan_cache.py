"""Schedules that were found before, on disk: the second run of a script need not search.

A file holds a sequence of operator numbers and a bound, nothing else. Its name is a hash of all
that the search saw, and what it holds is replayed before it is believed.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import torch

from ..solvers.remat import RematProblem, RematSolution, ScheduleError, check
from .store import BadFile, cache_directory, read_json, write_json

# Shapes and budgets add up over the years; the oldest files go.
_MOST_FILES = 1024


class PlanCache:
    """Schedules by the hash of their problem and of the search that found them.

    Parameters
    ----------
    problem : RematProblem
    limit : int
        Bytes.
    settings : any
        Whatever else the answer depends on, by its ``repr``.
    directory : Path, optional
        The user's cache folder by default.
    """

    def __init__(
        self, problem: RematProblem, limit: int, *settings: Any, directory: Path | None = None
    ) -> None:
        self.problem, self.limit = problem, limit
        self.path = plan_file(problem, limit, *settings, directory=directory)

    def find(self) -> RematSolution | None:
        """The schedule that was kept, if it is one of this problem within its limit."""
        try:
            row = read_json(self.path)
        except (OSError, BadFile):
            return None
        if not _is_row(row):
            return None
        try:
            total, peak = check(self.problem, row["sequence"])
        except ScheduleError:
            return None
        bound = row["lower_bound"]
        if peak > self.limit or not self.problem.base_time <= bound <= total:
            return None
        status = "optimal" if total <= bound else "feasible"
        sequence = tuple(row["sequence"])
        history = tuple(map(tuple, row.get("history", [])))
        return RematSolution(
            sequence, total, peak, bound, status, row["solver"], self.problem.floor, history
        )

    def keep(self, solution: RematSolution) -> None:
        """Write a schedule, if the folder can be written."""
        row = {
            "sequence": list(solution.sequence),
            "lower_bound": solution.lower_bound,
            "solver": solution.solver,
            "history": [list(improvement) for improvement in solution.history],
        }
        write_row(self.path, row)


def plan_file(
    problem: RematProblem, limit: int, *settings: Any, directory: Path | None = None
) -> Path:
    """Where the answer to a search is kept: all that the search saw names it."""
    name = _digest(problem, limit, *settings)
    return (directory or cache_directory()) / "plans" / f"{name}.json"


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Keep a file and let the oldest go; a folder that cannot be written is no cache."""
    with contextlib.suppress(OSError):
        write_json(path, row)
        _drop_oldest(path.parent)


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and {*row, "history"} == {"sequence", "lower_bound", "solver", "history"}
        and isinstance(row["sequence"], list)
        and all(type(v) is int for v in row["sequence"])
        and type(row["lower_bound"]) is int
        and isinstance(row["solver"], str)
        and isinstance(row.get("history", []), list)
        and all(map(_is_improvement, row.get("history", [])))
    )


def _is_improvement(row: Any) -> bool:
    kinds = ((int, float), (int,), (int,))
    return (
        isinstance(row, list)
        and len(row) == len(kinds)
        and all(type(value) in kind for value, kind in zip(row, kinds, strict=True))
    )


def _digest(problem: RematProblem, *settings: Any) -> str:
    from .. import __version__  # which imports this module

    seen = (
        problem.time,
        problem.size,
        problem.reads,
        problem.writes,
        problem.workspace,
        problem.reuse,
        sorted(problem.once),
        problem.ordered,
        problem.turn,
        sorted(problem.keep),
        problem.resident_bytes,
        settings,
        __version__,
        torch.__version__,
    )
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def _drop_oldest(folder: Path) -> None:
    files = list(folder.glob("*.json"))
    if len(files) > _MOST_FILES:
        files.sort(key=lambda file: file.stat().st_mtime)
        for file in files[: len(files) - _MOST_FILES]:
            file.unlink()
