"""Placing buffers one after another, each in the first gap that holds it or in the tightest one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Buffers
from .jit import INFINITE, MINUS_ONE, ZERO, entry, helper

PLACED = np.dtype(
    [(name, np.int64) for name in ("first", "last", "size", "gap_at", "gap_end", "bottom", "top")],
    align=True,
)
BLOCKS = (1, 4, 16, 32, 64, 128, 256)  # how many there may be
_WIDE = 3  # a buffer in so many blocks looks through all that are placed, and they at it


class Shelf(NamedTuple):
    """What is placed, in lists by offset, so that a short buffer looks at few others.

    Attributes
    ----------
    buffer : PLACED[n]
        Sections, size, gaps between fixed buffers in ``gaps``, and place.
    gaps : int64[..., 2]
        As in `Buffers`.
    block : int64[sections]
        Consecutive sections make a block.
    list_at, length : int64[blocks + 2]
        Where lists begin in ``items`` and how long they are: of each block the short buffers
        in it, then all wide buffers, then all buffers.
    items : int32[...]
        The lists.
    """

    buffer: np.ndarray
    gaps: np.ndarray
    block: np.ndarray
    list_at: np.ndarray
    length: np.ndarray
    items: np.ndarray


def records(buffers: Buffers) -> np.ndarray:
    """PLACED[n] of ``buffers``, none of them placed."""
    buffer = np.zeros(buffers.count, PLACED)
    buffer["first"], buffer["last"] = buffers.intervals.first, buffers.intervals.last
    buffer["gap_at"], buffer["gap_end"] = buffers.gap_at[:-1], buffers.gap_at[1:]
    buffer["size"] = buffers.size
    return buffer


def shelf(buffers: Buffers) -> Shelf:
    """An empty shelf for ``buffers``."""
    n = buffers.count
    blocks, block = min(
        (_blocks(buffers, blocks) for blocks in BLOCKS if blocks == 1 or blocks * 32 <= n),
        key=lambda choice: _comparisons(buffers, *choice),
    )
    room = _room(buffers, blocks, block)
    at = np.concatenate([[0], np.cumsum(room)[:-1]])
    return Shelf(
        records(buffers), buffers.gaps, block, at, np.zeros(blocks + 2, np.int64),
        np.empty(room.sum(), np.int32),
    )  # fmt: skip


def _blocks(buffers: Buffers, blocks: int) -> tuple[int, np.ndarray]:
    """How many there are, and the block of each section: as many buffers begin in each."""
    begin = np.bincount(buffers.intervals.first, minlength=buffers.intervals.sections)
    return blocks, np.minimum((np.cumsum(begin) - begin) * blocks // buffers.count, blocks - 1)


def _room(buffers: Buffers, blocks: int, block: np.ndarray) -> np.ndarray:
    """Lengths of the lists once all are placed."""
    one, two = block[buffers.intervals.first], block[buffers.intervals.last - 1]
    short = two - one + 1 < _WIDE
    room = np.bincount(one[short], minlength=blocks + 2)
    room += np.bincount(two[short & (two > one)], minlength=blocks + 2)
    room[blocks], room[blocks + 1] = buffers.count - short.sum(), buffers.count
    return room


def _comparisons(buffers: Buffers, blocks: int, block: np.ndarray) -> int:
    """How many others all buffers look at, about."""
    room = _room(buffers, blocks, block)
    one, two = block[buffers.intervals.first], block[buffers.intervals.last - 1]
    short = two - one + 1 < _WIDE
    seen = room[one] + np.where(two > one, room[two], 0) + room[blocks]
    return int(np.where(short, seen, room[blocks + 1]).sum())


@helper
def _insert(s: Shelf, which: int, i: int) -> None:
    start, offset = s.list_at[which], s.buffer[i].bottom
    low, high = start, start + s.length[which]
    while low < high:
        middle = (low + high) >> 1
        if s.buffer[s.items[middle]].bottom <= offset:
            low = middle + 1
        else:
            high = middle
    for k in range(start + s.length[which], low, -1):
        s.items[k] = s.items[k - 1]
    s.items[low] = i
    s.length[which] += 1


@helper
def _find(s: Shelf, i: int, tightest: bool) -> int:
    """The first or the tightest gap for ``i``, merging the lists that concern it."""
    b, blocks = s.buffer[i], len(s.length) - 2
    one, two = s.block[b.first], s.block[b.last - 1]
    if two - one + 1 >= _WIDE:
        one, two, three = blocks + 1, MINUS_ONE, MINUS_ONE
    else:
        three = blocks
        if two == one:
            two = MINUS_ONE
    x, x_end = s.list_at[one], s.list_at[one] + s.length[one]
    y, y_end, z, z_end, g = ZERO, ZERO, ZERO, ZERO, b.gap_at
    if two >= 0:
        y, y_end = s.list_at[two], s.list_at[two] + s.length[two]
    if three >= 0:
        z, z_end = s.list_at[three], s.list_at[three] + s.length[three]
    free, chosen, least = ZERO, MINUS_ONE, INFINITE
    while True:
        bottom, top, source = INFINITE, INFINITE, ZERO
        while x < x_end:
            other = s.buffer[s.items[x]]
            if other.first < b.last and other.last > b.first:
                bottom, top, source = other.bottom, other.top, ZERO
                break
            x += 1
        while y < y_end:
            other = s.buffer[s.items[y]]
            if other.first < b.last and other.last > b.first:
                if other.bottom < bottom:
                    bottom, top, source = other.bottom, other.top, ZERO + 1
                break
            y += 1
        while z < z_end:
            other = s.buffer[s.items[z]]
            if other.first < b.last and other.last > b.first:
                if other.bottom < bottom:
                    bottom, top, source = other.bottom, other.top, ZERO + 2
                break
            z += 1
        if g < b.gap_end and s.gaps[g, 0] < bottom:
            bottom, top, source = s.gaps[g, 0], s.gaps[g, 1], ZERO + 3
        room = bottom - free
        if room >= b.size:
            if not tightest:
                return free
            if bottom < INFINITE and room < least:
                chosen, least = free, room
        if bottom == INFINITE:
            break
        free = max(free, top)
        if source == 0:
            x += 1
        elif source == 1:
            y += 1
        elif source == 2:
            z += 1
        else:
            g += 1
    return chosen if chosen >= 0 else free


@entry
def place(s: Shelf, order: np.ndarray, given: np.ndarray, tightest: bool, height: int) -> int:
    """Add buffers to the shelf in ``order``; ``s.buffer["bottom"]`` has the offsets.

    Those with an offset in ``given``, not -1, are put there. Returns the height so far, from
    that before.
    """
    blocks = len(s.length) - 2
    for i in order:
        b = s.buffer[i]
        b.bottom = given[i]
        if b.bottom < 0:
            b.bottom = _find(s, i, tightest)
        b.top = b.bottom + b.size
        height = max(height, b.top)
        one, two = s.block[b.first], s.block[b.last - 1]
        if two - one + 1 >= _WIDE:
            _insert(s, blocks, i)
        else:
            _insert(s, one, i)
            if two > one:
                _insert(s, two, i)
        _insert(s, blocks + 1, i)
    return height
