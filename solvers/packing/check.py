"""Independent look at a packing: the one judge of every solver's answer.

Shares no code with any solver; written to be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from .overlap import first_overlap
from .problem import PackingProblem


class PackingViolation(ValueError):
    """Offsets break a rule of their problem; the message names the first violation."""


def check(problem: PackingProblem, offset: Sequence[int]) -> int:
    """Check ``offset`` and return the height of the arena.

    Parameters
    ----------
    problem : PackingProblem
    offset : sequence of int
        Offset of each buffer.

    Returns
    -------
    int
        The highest top of a buffer.

    Raises
    ------
    PackingViolation
        An offset is missing, negative, not aligned, or not the one that is fixed; or two buffers
        overlap while both live.
    """
    if len(offset) != problem.count:
        raise PackingViolation(f"{len(offset)} offsets for {problem.count} buffers")
    for i, at in enumerate(offset):
        if at < 0:
            raise PackingViolation(f"buffer {i} lies at {at}, below 0")
        if at % problem.alignment:
            raise PackingViolation(
                f"buffer {i} lies at {at}, no multiple of alignment {problem.alignment}"
            )
        if problem.fixed[i] != -1 and at != problem.fixed[i]:
            raise PackingViolation(f"buffer {i} lies at {at} and is fixed at {problem.fixed[i]}")
    found = first_overlap(problem.lower, problem.upper, problem.size, offset, range(problem.count))
    if found:
        where = [f"{i} at [{offset[i]}, {offset[i] + problem.size[i]})" for i in found[:2]]
        raise PackingViolation(f"buffers {where[0]} and {where[1]} overlap at time {found[2]}")
    return max((int(at) + size for at, size in zip(offset, problem.size, strict=True)), default=0)
