"""Placing buffers one after another, under numba. All kernels are in this file: numba looks at
a kernel's own file alone to see whether its cache is stale."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def neighbours(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each buffer, those that live at one time with it: ``near[start[i]:start[i + 1]]``."""
    count = len(lower)
    start = np.zeros(count + 1, np.int64)
    for i in range(count):
        for j in range(count):
            if i != j and lower[j] < upper[i] and upper[j] > lower[i]:
                start[i + 1] += 1
    for i in range(count):
        start[i + 1] += start[i]
    near = np.empty(start[count], np.int64)
    place = start.copy()
    for i in range(count):
        for j in range(count):
            if i != j and lower[j] < upper[i] and upper[j] > lower[i]:
                near[place[i]] = j
                place[i] += 1
    return start, near


@njit(cache=True, nogil=True)
def place(
    order: np.ndarray,
    size: np.ndarray,
    fixed: np.ndarray,
    start: np.ndarray,
    near: np.ndarray,
    best_gap: bool,
    offset: np.ndarray,
) -> int:
    """Place buffers in ``order``, each in the first gap that holds it, or in the least one.

    Fills ``offset`` (-1 before) and returns the height. Buffers with an offset in ``fixed``
    come first.
    """
    count = len(order)
    bottom, top = np.empty(count, np.int64), np.empty(count, np.int64)
    height = 0
    for i in range(count):
        offset[i] = fixed[i]
        if fixed[i] >= 0:
            height = max(height, fixed[i] + size[i])
    for i in order:
        if offset[i] >= 0:
            continue
        placed = 0
        for k in range(start[i], start[i + 1]):
            j = near[k]
            if offset[j] < 0:
                continue
            at = placed
            while at > 0 and bottom[at - 1] > offset[j]:
                bottom[at], top[at] = bottom[at - 1], top[at - 1]
                at -= 1
            bottom[at], top[at] = offset[j], offset[j] + size[j]
            placed += 1
        offset[i] = _gap(bottom, top, placed, size[i], best_gap)
        height = max(height, offset[i] + size[i])
    return height


@njit(cache=True, nogil=True)
def place_many(
    order: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    size: np.ndarray,
    fixed: np.ndarray,
    best_gap: bool,
    offset: np.ndarray,
) -> int:
    """As `place`, for so many buffers that lists of neighbours would not fit in memory."""
    count = len(order)
    by_offset = np.empty(count, np.int64)  # buffers that are placed, lowest first
    bottom, top = np.empty(count, np.int64), np.empty(count, np.int64)
    placed, height = 0, 0
    for turn in range(2):
        for i in order:
            if (turn == 0) != (fixed[i] >= 0):
                continue
            if turn == 0:
                offset[i] = fixed[i]
            else:
                near = 0
                for k in range(placed):
                    j = by_offset[k]
                    if lower[j] < upper[i] and upper[j] > lower[i]:
                        bottom[near], top[near] = offset[j], offset[j] + size[j]
                        near += 1
                offset[i] = _gap(bottom, top, near, size[i], best_gap)
            low, high = 0, placed
            while low < high:
                middle = (low + high) // 2
                if offset[by_offset[middle]] <= offset[i]:
                    low = middle + 1
                else:
                    high = middle
            for k in range(placed, low, -1):
                by_offset[k] = by_offset[k - 1]
            by_offset[low] = i
            placed += 1
            height = max(height, offset[i] + size[i])
    return height


@njit(cache=True, nogil=True)
def _gap(bottom: np.ndarray, top: np.ndarray, count: int, size: int, best_gap: bool) -> int:
    """Lowest or least gap of at least ``size`` between ranges that ascend by their bottom."""
    free, chosen, least = 0, -1, 1 << 62
    for k in range(count):
        gap = bottom[k] - free
        if gap >= size:
            if not best_gap:
                return free
            if gap < least:
                chosen, least = free, gap
        if top[k] > free:
            free = top[k]
    return free if chosen < 0 else chosen


@njit(cache=True, nogil=True)
def climb(
    order: np.ndarray,
    size: np.ndarray,
    fixed: np.ndarray,
    start: np.ndarray,
    near: np.ndarray,
    best_gap: bool,
    target: int,
    moves: int,
    seed: int,
    heat: float,
) -> tuple[int, np.ndarray, int]:
    """Anneal the order in which buffers are placed; return the least height, its order, moves.

    A move takes a buffer at the top of the arena, or any, to another turn; ``heat`` is the
    temperature at the start as a share of ``target``, and falls to zero.
    """
    np.random.seed(seed)
    count = len(order)
    offset = np.empty(count, np.int64)
    current = place(order, size, fixed, start, near, best_gap, offset)
    best, best_order = current, order.copy()
    trial, tried = order.copy(), offset.copy()
    done = 0
    while done < moves and best > target:
        trial[:] = order
        _move(trial, offset, size, current - target // 500)
        height = place(trial, size, fixed, start, near, best_gap, tried)
        warmth = heat * target * (1 - done / moves)
        if height <= current or np.random.random() * warmth > height - current:
            order, trial = trial, order
            offset, tried = tried, offset
            current = height
            if height < best:
                best = height
                best_order[:] = order
        done += 1
    return best, best_order, done


@njit(cache=True, nogil=True)
def _move(order: np.ndarray, offset: np.ndarray, size: np.ndarray, high: int) -> None:
    count = len(order)
    source = np.random.randint(count)
    target = np.random.randint(count)
    if np.random.random() < 0.8:  # a buffer at the top goes earlier
        seen = 0
        for turn in range(count):
            i = order[turn]
            if offset[i] + size[i] >= high:
                seen += 1
                if np.random.randint(seen) == 0:
                    source = turn
        target = np.random.randint(source + 1)
    moved = order[source]
    step = 1 if target > source else -1
    for turn in range(source, target, step):
        order[turn] = order[turn + step]
    order[target] = moved
