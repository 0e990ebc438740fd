"""Cut a chain into consecutive parts so that the largest load of a part is least; exact."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


class NoPartition(ValueError):
    """No cut keeps every part within its capacity (proved)."""


def partition_chain(
    load: Sequence[int],
    parts: int,
    size: Sequence[int] | None = None,
    capacity: int | None = None,
) -> tuple[int, ...]:
    """Consecutive parts of a chain whose largest load is the least possible.

    Parameters
    ----------
    load : sequence of int
        What each element adds to the load of its part; not negative.
    parts : int
        Number of parts. Parts are empty only where there are fewer elements than parts.
    size : sequence of int, optional
        What each element takes of its part's capacity.
    capacity : int, optional
        Most that the sizes in one part may sum up to.

    Returns
    -------
    tuple of int
        The part of each element, 0, 1, ..., not decreasing.

    Raises
    ------
    NoPartition
        The capacity cannot be kept.
    ValueError
        A number is out of range.

    Notes
    -----
    Dynamic program over (parts, first elements), of the kind of Bokhari (1988), "Partitioning
    problems in parallel, pipelined, and distributed computing": parts × elements² steps.
    """
    count = len(load)
    size = load if size is None else size
    if parts < 1 or len(size) != count or any(v < 0 for v in (*load, *size)):
        raise ValueError("parts must be positive, loads and sizes equally many and not negative")
    loads = list(accumulate(load, initial=0))
    sizes = list(accumulate(size, initial=0))
    used = min(parts, count)
    none = loads[-1] + 1  # worse than any
    best = [0] + [none] * count  # best[j]: largest load of the first j elements in so many parts
    cuts: list[list[int]] = []
    for _ in range(used):
        following, cut = [none] * (count + 1), [0] * (count + 1)
        for stop in range(1, count + 1):
            for start in range(stop - 1, -1, -1):
                if capacity is not None and sizes[stop] - sizes[start] > capacity:
                    break  # a longer part only takes more
                worst = max(best[start], loads[stop] - loads[start])
                if worst < following[stop]:
                    following[stop], cut[stop] = worst, start
        best = following
        cuts.append(cut)
    if count and best[count] == none:
        raise NoPartition(f"{count} elements do not fit into {used} parts of capacity {capacity}")
    part, stop = [0] * count, count
    for number in range(used - 1, -1, -1):
        start = cuts[number][stop]
        part[start:stop] = [number] * (stop - start)
        stop = start
    return tuple(part)
