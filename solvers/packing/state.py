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
        ``total`` of open sizes; ``witness``, an open buffer that was lowest when last looked
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
    failed : FAILED[...]
        A table of pieces that are known to have no packing.
    """

    buffer: np.ndarray
    section: np.ndarray
    frame: np.ndarray
    rows: np.ndarray
    items: np.ndarray
    trail: np.ndarray
    failed: np.ndarray
    meta: np.ndarray


def empty_state(buffers: Buffers, capacity: int, order: tuple[str, ...]) -> State:
    """A search that has not begun.

    Parameters
    ----------
    buffers : Buffers
    capacity : int
        Bytes.
    order : tuple of str
        Permutation of `KEYS`: larger first, by the first key that differs.
    """
    n, intervals = buffers.count, buffers.intervals
    near_at, near = buffers.near
    first, last = intervals.first, intervals.last
    gaps = buffers.gaps.ravel()
    rows = [near, gaps]
    buffer, section = np.zeros(n, BUFFER), np.zeros(intervals.sections, SECTION)
    buffer["offset"], buffer["size"], buffer["limit"] = OPEN, buffers.size, buffers.limit(capacity)
    buffer["first"], buffer["last"] = first, last
    buffer["near_at"], buffer["near_end"] = near_at[:-1], near_at[1:]
    buffer["gap_at"], buffer["gap_end"] = (
        len(near) + 2 * buffers.gap_at[:-1],
        len(near) + 2 * buffers.gap_at[1:],
    )
    buffer["width"] = buffers.upper - buffers.lower
    buffer["area"] = buffer["width"] * buffer["size"]
    section["total"] = intervals.totals(buffers.size)
    buffer["busiest"] = intervals.busiest(section["total"])
    section["witness"] = -1
    at = len(near) + len(gaps)
    who = [np.flatnonzero((first <= s) & (s < last)) for s in range(intervals.sections)]
    ends = at + np.cumsum([len(w) for w in who])
    section["who_end"], section["who_at"] = ends, ends - [len(w) for w in who]
    alive = section["who_end"] - section["who_at"]
    ending = np.bincount(last - 1, minlength=intervals.sections)
    section["across"] = alive - ending
    buffer["twin"] = _twins(buffers, buffer["limit"])
    meta = np.zeros(META, np.int64)
    meta[CAPACITY] = -(-capacity // buffers.unit)
    meta[ORDER] = sum(KEYS.index(key) << (2 * place) for place, key in enumerate(order))
    failed = np.zeros(TABLE, FAILED)
    failed["floor"] = UNSEEN
    return State(
        buffer, section, np.zeros(n + 2, FRAME),
        np.concatenate([*rows, *who]).astype(np.int64),
        np.empty((n + 2) * (n + 4) + intervals.sections, np.int64),
        np.empty(len(near) + n + 1, TRAIL), failed, meta,
    )  # fmt: skip


def _twins(buffers: Buffers, limit: np.ndarray) -> np.ndarray:
    """For each buffer the one before it of equal size, sections and limits; -1: none."""
    seen: dict[tuple[object, ...], int] = {}
    twins = np.full(buffers.count, -1, np.int64)
    first, last = buffers.intervals.first, buffers.intervals.last
    for i in range(buffers.count):
        gaps = buffers.gaps[buffers.gap_at[i] : buffers.gap_at[i + 1]].tobytes()
        equal = (buffers.size[i], first[i], last[i], limit[i], gaps)
        twins[i] = seen.get(equal, -1)
        seen[equal] = i
    return twins
