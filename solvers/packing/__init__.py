"""Offsets of buffers in one arena: the two-dimensional half of dynamic storage allocation."""

from .auto import pack
from .check import PackingViolation, check
from .problem import PackingProblem, PackingSolution

__all__ = ["PackingProblem", "PackingSolution", "PackingViolation", "check", "pack"]
