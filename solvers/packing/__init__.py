"""Offsets of buffers in one arena, when it is known from when to when each lives."""

from .auto import pack
from .check import PackingViolation, check
from .problem import PackingProblem, PackingProblemError
from .solution import PackingSolution
from .warm import warm_up

__all__ = [
    "PackingProblem",
    "PackingProblemError",
    "PackingSolution",
    "PackingViolation",
    "check",
    "pack",
    "warm_up",
]
