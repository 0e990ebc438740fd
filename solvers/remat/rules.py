"""Solvers that make one schedule by a rule, and answer at once or within their deadline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import heuristics
from .arrays import Arrays
from .blocks import blocks
from .checkmate import checkmate_lp
from .cpsat import cpsat
from .problem import RematProblem
from .rotor import rotor

# (problem, its arrays, budget, deadline by `time.monotonic`) -> a valid schedule
Rule = Callable[[RematProblem, Arrays, int | None, float], np.ndarray]


def at_once(rule: Callable[[RematProblem, Arrays, int | None], np.ndarray]) -> Rule:
    """``rule``, which needs no deadline."""
    return lambda problem, a, budget, deadline: rule(problem, a, budget)


RULES: dict[str, Rule] = {
    "none": at_once(heuristics.none),
    "all": at_once(heuristics.everything),
    "sqrt": at_once(heuristics.sqrt),
    "greedy": heuristics.greedy,
    "mincut": at_once(heuristics.mincut),
    "cpsat": cpsat,
    "blocks": blocks,
    "rotor": rotor,
    "checkmate-lp": checkmate_lp,
}
