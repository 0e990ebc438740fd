"""What a solver answers, and what a replay tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .problem import Action

Direction = Literal["out", "in"]


@dataclass(frozen=True)
class Transfer:
    """One transfer over a link.

    Attributes
    ----------
    storage, tier : int
    direction : str
        ``"out"`` or ``"in"``.
    asked, done : int
        Positions of its two actions.
    start, end : int
        When the link is taken by it.
    size : int
        Bytes.
    """

    storage: int
    tier: int
    direction: Direction
    asked: int
    done: int
    start: int
    end: int
    size: int


@dataclass(frozen=True)
class Replay:
    """What a schedule does.

    Attributes
    ----------
    peak : int
        Largest number of bytes in memory at once, residents included.
    makespan : int
        When the processor is through.
    memory : tuple of int
        Bytes in memory during each action: for ``run`` with outputs and workspace, for ``in``
        with the new copy, for ``out_done`` with the copy that it is about to free.
    starts, ends : tuple of int
        When the processor meets each action and goes on: a run between them, a toll, or a wait.
    transfers : tuple of Transfer
        In the order in which they were asked for.
    stall : int
        Time that the processor waits for transfers, in all.
    tier_peak : tuple of int
        Most bytes on each tier. A storage is there from its ``out`` to its last ``in_done``.
    link_bytes : dict
        Bytes over each link, by (tier, direction).
    """

    peak: int
    makespan: int
    memory: tuple[int, ...] = field(repr=False)
    starts: tuple[int, ...] = field(repr=False)
    ends: tuple[int, ...] = field(repr=False)
    transfers: tuple[Transfer, ...] = field(repr=False)
    stall: int
    tier_peak: tuple[int, ...]
    link_bytes: dict[tuple[int, Direction], int]


@dataclass(frozen=True)
class TransferSolution:
    """A schedule and what is known of its quality.

    Attributes
    ----------
    actions : tuple of Action
        In the order in which the processor meets them; empty if none was found.
    makespan : int
        Time of the step by `check`.
    peak : int
        Bytes in memory at the worst moment, residents included.
    lower_bound : int
        No schedule within the budget has a smaller makespan.
    status : str
        ``"optimal"``, ``"feasible"``, ``"infeasible"`` (proved) or ``"unknown"``. With the last
        two, ``actions`` is the schedule of least peak that was found, and ``peak`` that peak.
    solver : str
        What found it: ``"given order"``, ``"start"``, ``"exact"`` or ``"reduction"``.
    least_peak : int
        Least peak of any schedule that was seen, in bytes.
    seconds : float
        Time that the search took.
    interrupted : bool
        Did Ctrl-C end the search early? The best schedule until then is the answer.
    """

    actions: tuple[Action, ...] = field(repr=False)
    makespan: int
    peak: int
    lower_bound: int
    status: str
    solver: str
    least_peak: int = 0
    seconds: float = field(default=0.0, compare=False)
    interrupted: bool = field(default=False, compare=False)

    @property
    def gap(self) -> float:
        """``makespan / lower_bound - 1``; 0 when proved optimal."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def moved(self) -> frozenset[int]:
        """Storages that are moved out and back."""
        return frozenset(a.index for a in self.actions if a.kind == "in")
