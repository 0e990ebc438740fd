"""The first overlap of placed buffers: a plain sweep over time, no part of any solver."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence


def first_overlap(
    lower: Sequence[int],
    upper: Sequence[int],
    size: Sequence[int],
    offset: Sequence[int],
    buffers: Iterable[int],
) -> tuple[int, int, int] | None:
    """The first time at which two of ``buffers`` overlap, as ``(buffer, buffer, time)``.

    What lives at once is kept by offset, so only the two next to a new buffer can be in its way.
    """
    events = []
    for i in buffers:
        if size[i]:
            events += [(lower[i], 1, i), (upper[i], 0, i)]
    alive: list[tuple[int, int]] = []  # (offset, buffer), ascending
    for time, starts, i in sorted(events):  # at one time, ends come before starts
        at = bisect_left(alive, (offset[i], i))
        if not starts:
            del alive[at]
            continue
        for bottom, j in alive[max(0, at - 1) : at + 1]:
            if bottom < offset[i] + size[i] and offset[i] < bottom + size[j]:
                return j, i, time
        insort(alive, (offset[i], i))
    return None
