"""What the solver found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class StagePlan:
    """One stage.

    Attributes
    ----------
    device : int
        Position among the problem's devices.
    start, stop : int
        Its items are ``start:stop``.
    options : tuple of int
        The option of each of its items.
    forward, backward : float
        Seconds a microbatch on its device, recomputation included.
    in_flight : int
        Most microbatches whose activations it holds at once.
    peak : int
        Bytes; of the whole device where it holds several stages.
    """

    device: int
    start: int
    stop: int
    options: tuple[int, ...]
    forward: float
    backward: float
    in_flight: int
    peak: int


@dataclass(frozen=True)
class PartitionSolution:
    """Stages in the order of the chain.

    Attributes
    ----------
    status : str
        ``"optimal"``, ``"feasible"``, ``"infeasible"`` (proved) or ``"unknown"``.
    stage_plans : tuple of StagePlan
        Empty without a plan.
    step_seconds : float
        Of the whole step, simulated; infinite without a plan.
    bubble : float
        Share of the devices' time that is idle.
    lower_bound : float
        Seconds that no plan beats.
    schedule : str
    microbatches : int
    """

    status: Status
    stage_plans: tuple[StagePlan, ...]
    step_seconds: float
    bubble: float
    lower_bound: float
    schedule: str
    microbatches: int

    @property
    def cuts(self) -> tuple[int, ...]:
        """First item of each stage but the first."""
        return tuple(stage.start for stage in self.stage_plans[1:])

    @property
    def gap(self) -> float:
        """How far, at most, the step is above the best, as a share of the bound."""
        if self.step_seconds <= self.lower_bound:
            return 0.0
        return self.step_seconds / self.lower_bound - 1 if self.lower_bound else float("inf")
