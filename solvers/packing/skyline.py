"""Lowest first: of all open buffers, the one that can lie lowest is placed next.

The skyline holds the highest top of each section; a buffer lies on the highest of its sections,
never in a hole below. Since low places are filled first, few holes remain.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import Buffers
from .jit import ZERO, entry, helper
from .place import records

# Looks at one buffer, on average, beyond which an order is given up.
PATIENCE = 1000
_CHUNK = 50_000  # looks between two at the clock


@helper
def _highest(tree: np.ndarray, raised: np.ndarray, first: int, last: int) -> int:
    """The highest top in the sections ``first`` to ``last - 1``."""
    leaves = len(tree) >> 1
    low, high, most = first + leaves, last - 1 + leaves, ZERO
    one, two = low >> 1, high >> 1
    while low <= high:
        if low & 1:
            most = max(most, tree[low])
            low += 1
        if not high & 1:
            most = max(most, tree[high])
            high -= 1
        low >>= 1
        high >>= 1
    while one > 0:
        most = max(most, max(raised[one], raised[two]))
        one >>= 1
        two >>= 1
    return most


@helper
def _raise(tree: np.ndarray, raised: np.ndarray, first: int, last: int, top: int) -> None:
    """Lift those sections to ``top``; ``raised`` holds what whole subtrees were lifted to."""
    leaves = len(tree) >> 1
    low, high = first + leaves, last - 1 + leaves
    one, two = low >> 1, high >> 1
    while low <= high:
        if low & 1:
            tree[low] = max(tree[low], top)
            raised[low] = max(raised[low], top)
            low += 1
        if not high & 1:
            tree[high] = max(tree[high], top)
            raised[high] = max(raised[high], top)
            high -= 1
        low >>= 1
        high >>= 1
    while one > 0:
        tree[one] = max(tree[one], max(tree[2 * one], tree[2 * one + 1]))
        tree[two] = max(tree[two], max(tree[2 * two], tree[2 * two + 1]))
        one >>= 1
        two >>= 1


@helper
def _sift(heap: np.ndarray, length: int) -> None:
    """Let the root of the heap sink to its place."""
    at, least, rank = ZERO, heap[0, 0], heap[0, 1]
    while True:
        child = 2 * at + 1
        if child >= length:
            break
        other = child + 1
        if other < length and (
            heap[other, 0] < heap[child, 0]
            or (heap[other, 0] == heap[child, 0] and heap[other, 1] < heap[child, 1])
        ):
            child = other
        if heap[child, 0] > least or (heap[child, 0] == least and heap[child, 1] > rank):
            break
        heap[at, 0], heap[at, 1] = heap[child, 0], heap[child, 1]
        at = child
    heap[at, 0], heap[at, 1] = least, rank


@entry
def _lowest_first(
    heap: np.ndarray,
    length: int,
    order: np.ndarray,
    buffer: np.ndarray,
    gaps: np.ndarray,
    tree: np.ndarray,
    raised: np.ndarray,
    looks: int,
) -> int:
    """Place on for some ``looks`` at a buffer; returns how many are left in the heap."""
    while length > 0 and looks > 0:
        looks -= 1
        least, i = heap[0, 0], order[heap[0, 1]]
        b = buffer[i]
        now = _highest(tree, raised, b.first, b.last)
        for k in range(b.gap_at, b.gap_end):
            if gaps[k, 0] < now + b.size and now < gaps[k, 1]:
                now = gaps[k, 1]
        if now > least:
            heap[0, 0] = now
        else:
            b.bottom, b.top = now, now + b.size
            _raise(tree, raised, b.first, b.last, b.top)
            length -= 1
            heap[0, 0], heap[0, 1] = heap[length, 0], heap[length, 1]
        _sift(heap, length)
    return length


def lowest_first(
    buffers: Buffers, order: np.ndarray, stop: Callable[[], bool] = lambda: False
) -> np.ndarray | None:
    """Offsets in units, ties broken by ``order``; None if stopped or it would take too long."""
    n, sections = buffers.count, buffers.intervals.sections
    heap = np.zeros((n, 2), np.int64)
    heap[:, 1] = np.arange(n)
    leaves = 1 << int(sections - 1).bit_length()
    tree, raised = np.zeros(2 * leaves, np.int64), np.zeros(2 * leaves, np.int64)
    buffer, length = records(buffers), n
    for _ in range(0, PATIENCE * n, _CHUNK):
        if stop():
            return None
        length = _lowest_first(heap, length, order, buffer, buffers.gaps, tree, raised, _CHUNK)
        if not length:
            return buffer["bottom"].copy()
    return None
