"""Rematerialisation: which values to keep or recompute, and in which order."""

from .auto import SOLVERS, least_peak, solve
from .check import ScheduleError, check, replay
from .problem import RematProblem
from .solution import RematSolution
from .warm import warm_up

__all__ = [
    "SOLVERS",
    "RematProblem",
    "RematSolution",
    "ScheduleError",
    "check",
    "least_peak",
    "replay",
    "solve",
    "warm_up",
]
