"""Schedules with transfers that were found before, on disk beside those of `plan_cache`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..solvers.remat import ScheduleError
from ..solvers.transfer import Action, TransferProblem, TransferSolution, check
from .plan_cache import plan_file, write_row
from .store import BadFile, read_json

_KINDS = ("run", "out", "out_done", "in", "in_done")


class MoveCache:
    """As `PlanCache`; a file holds actions by name and number, and is replayed too.

    Parameters
    ----------
    problem : TransferProblem
    limit : int
        Bytes.
    settings : any
        Whatever else the answer depends on, by its ``repr``.
    directory : Path, optional
        The user's cache folder by default.
    """

    def __init__(
        self, problem: TransferProblem, limit: int, *settings: Any, directory: Path | None = None
    ) -> None:
        self.problem, self.limit = problem, limit
        # Free bytes of a disk change from run to run; the replay sees to it that they suffice.
        tiers = tuple(replace(tier, capacity=None) for tier in problem.tiers)
        seen = (tiers, sorted(problem.movable), *settings)
        self.path = plan_file(problem.remat, limit, *seen, directory=directory)

    def find(self) -> TransferSolution | None:
        """The schedule that was kept, if it is one of this problem within its limit."""
        try:
            row = read_json(self.path)
        except (OSError, BadFile):
            return None
        if not _is_row(row, self.problem):
            return None
        actions = tuple(Action(*action) for action in row["actions"])
        try:
            replay = check(self.problem, actions, self.limit)
        except ScheduleError:
            return None
        bound = row["lower_bound"]
        if not self.problem.remat.base_time <= bound <= replay.makespan:
            return None
        status = "optimal" if replay.makespan <= bound else "feasible"
        return TransferSolution(
            actions, replay.makespan, replay.peak, bound, status, row["solver"], replay.peak
        )

    def keep(self, solution: TransferSolution) -> None:
        """Write a schedule, if the folder can be written."""
        row = {
            "actions": [list(action) for action in solution.actions],
            "lower_bound": solution.lower_bound,
            "solver": solution.solver,
        }
        write_row(self.path, row)


def _is_row(row: Any, problem: TransferProblem) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() == {"actions", "lower_bound", "solver"}
        and isinstance(row["actions"], list)
        and all(_is_action(action, problem) for action in row["actions"])
        and type(row["lower_bound"]) is int
        and isinstance(row["solver"], str)
    )


def _is_action(action: Any, problem: TransferProblem) -> bool:
    return (
        isinstance(action, list)
        and len(action) == 3
        and action[0] in _KINDS
        and all(type(number) is int for number in action[1:])
        and 0 <= action[2] < max(1, len(problem.tiers))
    )
