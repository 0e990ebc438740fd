"""Moving storages to slower memory and back, decided together with recomputation."""

from ..remat import ScheduleError
from .check import check
from .problem import Action, Kind, Tier, TransferProblem
from .solution import Direction, Replay, Transfer, TransferSolution
from .solve import solve

__all__ = [
    "Action",
    "Direction",
    "Kind",
    "Replay",
    "ScheduleError",
    "Tier",
    "Transfer",
    "TransferProblem",
    "TransferSolution",
    "check",
    "solve",
]
