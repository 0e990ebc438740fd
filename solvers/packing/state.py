"""What the complete search remembers, as records, so that numba compiles in bearable time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Buffers

OPEN = -1  # the offset of a buffer that is not placed
KEYS = ("width", "area", "busiest")
BUFFER = np.dtype(
    [
        (name, np.int64)
        for name in (
            "offset", "least", "size", "limit", "first", "last", "near_at", "near_end",
            "gap_at", "gap_end", "twin", *KEYS,
        )
    ],
    align=True,
)  # fmt: skip
SECTION = np.dtype(
    [(name, np.int64) for name in ("total", "witness", "across", "who_at", "who_end")], align=True
)
FRAME = np.dtype(
    [
        (name, np.int64)
        for name in (
            "owner", "low", "high", "list_at", "list_end", "next", "end", "floor", "fails_from",
            "key", "placed", "trail_at", "piece", "pieces_end",
        )
    ],
    align=True,
)  # fmt: skip
TRAIL = np.dtype([("buffer", np.int64), ("least", np.int64)], align=True)
FAILED = np.dtype([("key", np.int64), ("floor", np.int64)], align=True)

DEPTH, TOP, TRAILED, CAPACITY, ORDER, NODES, META = range(7)
# Entries of the table of failures, at most; few for small problems, since many searches run.
TABLE = 1 << 18
UNSEEN = 1 << 62


class State(NamedTuple):
    """A search that can be stopped and resumed.

    Attributes
    ----------
    buffer : BUFFER[n]
        ``offset``; ``least``, the lowest offset that its placed neighbours leave open;
        ``limit``, the highest top that it may have; its sections; its neighbours and the gaps
        between fixed buffers in ``rows``; ``twin``, one before it that is its equal in all; and
        what orderings go by.
    section : SECTION[s]
        ``total`` of open sizes; ``witness``, an open buffer that was low enough when last looked
        for; ``across``, open buffers that live both here and in the next section; its buffers.
    frame : FRAME[n + 2]
        The path from the root to here. Each frame chooses the next buffer of one piece of the
        problem, the sections ``low`` to ``high``: ``list``, its open buffers in order; ``next``
        to ``end``, candidates still to try; ``floor``, no further offset is lower;
        ``fails_from``, no floor from here up would help if this fails; ``key``, a hash of open
        buffers and their least offsets; ``placed``, the buffer under trial; ``piece``, the
        next of the pieces into which it splits the rest. ``owner``: the frame that made the
        piece.
    items : int64[...]
        A stack of lists, candidates and boundaries of pieces.
    trail : TRAIL[...]
        Least offsets to go back to.
    failed : FAILED[power of two]
        A table of pieces that are known to have no packing, by hash; newer entries replace older.
    """

    buffer: np.ndarray
    section: np.ndarray
    frame: np.ndarray
    rows: np.ndarray
    items: np.ndarray
    trail: np.ndarray
    failed: np.ndarray
    meta: np.ndarray


def blank(buffers: Buffers) -> State:
    """What all searches of ``buffers`` begin with, whatever their capacity and ordering."""
    n, intervals = buffers.count, buffers.intervals
    near_at, near = buffers.near
    first, last = intervals.first, intervals.last
    buffer, section = np.zeros(n, BUFFER), np.zeros(intervals.sections, SECTION)
    buffer["offset"], buffer["size"] = OPEN, buffers.size
    buffer["first"], buffer["last"] = first, last
    buffer["near_at"], buffer["near_end"] = near_at[:-1], near_at[1:]
    gap_at = len(near) + 2 * buffers.gap_at
    buffer["gap_at"], buffer["gap_end"] = gap_at[:-1], gap_at[1:]
    buffer["width"] = buffers.upper - buffers.lower
    buffer["area"] = buffer["width"] * buffer["size"]
    buffer["twin"] = _twins(buffers)
    section["total"] = intervals.totals(buffers.size)
    buffer["busiest"] = intervals.busiest(section["total"])
    section["witness"] = -1
    alive = intervals.totals(np.ones(n, np.int64))
    section["across"] = alive - np.bincount(last - 1, minlength=intervals.sections)
    who = [np.flatnonzero((first <= s) & (s < last)) for s in range(intervals.sections)]
    section["who_end"] = gap_at[-1] + np.cumsum(alive)
    section["who_at"] = section["who_end"] - alive
    rows = np.concatenate([near, buffers.gaps.ravel(), *who]).astype(np.int64)
    none = np.empty(0, np.int64)
    return State(
        buffer, section, np.zeros(n + 2, FRAME), rows, none, np.empty(0, TRAIL),
        np.empty(0, FAILED), np.zeros(META, np.int64),
    )  # fmt: skip


def begin(start: State, buffers: Buffers, capacity: int, order: tuple[str, ...]) -> State:
    """A search that has not begun.

    Parameters
    ----------
    start : State
        From `blank`.
    buffers : Buffers
    capacity : int
        Bytes.
    order : tuple of str
        Permutation of `KEYS`: larger first, by the first key that differs.
    """
    buffer, meta, n = start.buffer.copy(), start.meta.copy(), len(start.buffer)
    buffer["limit"] = buffers.limit(capacity)
    meta[CAPACITY] = -(-capacity // buffers.unit)
    meta[ORDER] = sum(KEYS.index(key) << (2 * place) for place, key in enumerate(order))
    failed = np.zeros(min(TABLE, 1 << (2 * n.bit_length() + 4)), FAILED)
    failed["floor"] = UNSEEN
    return start._replace(
        buffer=buffer,
        section=start.section.copy(),
        frame=start.frame.copy(),
        items=np.empty((n + 2) * (n + 4) + len(start.section), np.int64),
        trail=np.empty(len(buffers.near[1]) + n + 1, TRAIL),
        failed=failed,
        meta=meta,
    )


def empty_state(buffers: Buffers, capacity: int, order: tuple[str, ...]) -> State:
    """`begin` from a new `blank`."""
    return begin(blank(buffers), buffers, capacity, order)


def _twins(buffers: Buffers) -> np.ndarray:
    """For each buffer the one before it of equal size, sections and gaps; -1: none."""
    seen: dict[tuple[object, ...], int] = {}
    twins = np.full(buffers.count, -1, np.int64)
    first, last = buffers.intervals.first.tolist(), buffers.intervals.last.tolist()
    size = buffers.problem.size
    for i, number in enumerate(buffers.index.tolist()):
        gaps = buffers.gaps[buffers.gap_at[i] : buffers.gap_at[i + 1]].tobytes()
        equal = (size[number], first[i], last[i], gaps)
        twins[i] = seen.get(equal, -1)
        seen[equal] = i
    return twins
