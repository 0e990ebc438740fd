"""An independent look at a packing: plain Python, nothing shared with the solvers."""

from __future__ import annotations

from collections.abc import Sequence

from .problem import PackingProblem


class PackingViolation(ValueError):
    """The offsets are no packing; the message names the first buffer that is wrong."""


def check(problem: PackingProblem, offset: Sequence[int]) -> int:
    """Check offsets and return the bytes of the arena that they need.

    Raises
    ------
    PackingViolation
        An offset is missing, negative, not aligned or moved from where it was fixed, or two
        buffers overlap while both live.
    """
    if len(offset) != problem.count:
        raise PackingViolation(f"{len(offset)} offsets for {problem.count} buffers.")
    for i, (place, wanted) in enumerate(zip(offset, problem.fixed, strict=True)):
        if place < 0 or place % problem.alignment:
            raise PackingViolation(
                f"buffer {i} lies at {place}: not a multiple of {problem.alignment} from 0 on."
            )
        if wanted is not None and place != wanted:
            raise PackingViolation(f"buffer {i} lies at {place} and is fixed at {wanted}.")
    # Sweep over time: ends before starts, since a buffer is gone at its upper time.
    events = [(t, 1, i) for i, t in enumerate(problem.lower)]
    events += [(t, 0, i) for i, t in enumerate(problem.upper)]
    alive: set[int] = set()
    for _, starts, i in sorted(events):
        if not starts:
            alive.discard(i)
            continue
        low, high = offset[i], offset[i] + problem.size[i]
        for j in alive:
            if offset[j] < high and low < offset[j] + problem.size[j]:
                raise PackingViolation(
                    f"buffers {j} and {i} overlap: [{offset[j]}, {offset[j] + problem.size[j]}) "
                    f"and [{low}, {high}), both alive at {problem.lower[i]}."
                )
        alive.add(i)
    return max((o + s for o, s in zip(offset, problem.size, strict=True)), default=0)
