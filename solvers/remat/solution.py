"""What a solver answers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RematSolution:
    """A schedule and what is known of its quality.

    Attributes
    ----------
    sequence : tuple of int
        Operators in the order in which they run; empty if none was found.
    total_time : int
        Sum of the durations of all runs.
    peak : int
        Bytes alive at the worst moment, residents included.
    lower_bound : int
        No schedule within the budget takes less time than this.
    status : str
        ``"optimal"``, ``"feasible"``, ``"infeasible"`` (proved) or ``"unknown"``. With the
        last two, ``sequence`` is the schedule of least peak that was found, if any.
    solver : str
        Name of the solver.
    floor : int
        A lower bound on the least feasible budget.
    history : tuple of (float, int, int)
        Seconds since the search began, total time of the best schedule within the budget, and
        lower bound then; one row for each improvement, and one for the end.
    interrupted : bool
        Did Ctrl-C end the search early? The best schedule until then is the answer.
    """

    sequence: tuple[int, ...]
    total_time: int
    peak: int
    lower_bound: int
    status: str
    solver: str
    floor: int = 0
    history: tuple[tuple[float, int, int], ...] = field(default=(), compare=False)
    interrupted: bool = field(default=False, compare=False)

    @property
    def gap(self) -> float:
        """``total_time / lower_bound - 1``; 0 when proved optimal."""
        return self.total_time / self.lower_bound - 1 if self.lower_bound else 0.0
