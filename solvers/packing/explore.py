"""Complete depth-first search for a packing below a capacity: one nogil kernel that can be resumed.

After Moffitt, MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning
(ASPLOS 2023): canonical placements in order of offset, dominance, section inference, a floor that
only rises, decomposition where no open buffer crosses a boundary. Ours: an explicit stack that
jumps over pieces already solved, equal buffers in one order only, witnesses in place of
recomputed floors, and a table of pieces known to have no packing.

Why it is complete: of all packings below the capacity take one of least sum of offsets, equal
buffers in order. Every offset is the lowest that the buffers below leave open, so placing buffers
in order of offset, ties in order of the list, meets it; none of the rules below cuts it off, since
each cuts off only what could be moved down, or what failed before from a state as free.
"""

from __future__ import annotations

from .jit import INFINITE, MINUS_ONE, ONE, ZERO, entry, helper
from .state import CAPACITY, DEPTH, NODES, OPEN, ORDER, TOP, TRAILED, State

RUNNING, SOLVED, FAILED = range(3)


@helper
def _lift(s: State, i: int, offset: int) -> int:
    """The lowest offset from ``offset`` up at which no fixed buffer is in the way of ``i``."""
    b = s.buffer[i]
    for k in range(b.gap_at, b.gap_end, 2):
        if s.rows[k] < offset + b.size and offset < s.rows[k + 1]:
            offset = s.rows[k + 1]
    return offset


@helper
def _key(s: State, i: int, place: int) -> int:
    which = (s.meta[ORDER] >> (2 * place)) & 3
    if which == 0:
        return s.buffer[i].width
    if which == 1:
        return s.buffer[i].area
    return s.buffer[i].busiest


@helper
def _before(s: State, i: int, j: int) -> bool:
    """Whether ``i`` comes before ``j`` in the ordering."""
    for place in range(3):
        a, b = _key(s, i, place), _key(s, j, place)
        if a != b:
            return a > b
    return i < j


@helper
def _place(s: State, f: int, i: int) -> bool:
    """Put ``i`` at its least offset; False where a neighbour then fits no more."""
    frame, b = s.frame[f], s.buffer[i]
    frame.placed, frame.trail_at = i, s.meta[TRAILED]
    b.offset = b.least
    top = b.offset + b.size
    for x in range(b.first, b.last):
        s.section[x].total -= b.size
        s.section[x].across -= 1
    s.section[b.last - 1].across += 1
    trailed = s.meta[TRAILED]
    fits = True
    for k in range(b.near_at, b.near_end):
        j = s.rows[k]
        other = s.buffer[j]
        if other.offset == OPEN and other.least < top:
            s.trail[trailed].buffer, s.trail[trailed].least = j, other.least
            trailed += 1
            least = top
            if other.gap_end > other.gap_at:
                least = _lift(s, j, top)
            other.least = least
            if least + other.size > other.limit:
                fits = False
                break
    s.meta[TRAILED] = trailed
    return fits


@helper
def _undo(s: State, f: int) -> None:
    """Take back the placement of frame ``f``, the last that was made."""
    frame = s.frame[f]
    if frame.placed < 0:
        return
    b = s.buffer[frame.placed]
    for k in range(s.meta[TRAILED] - 1, frame.trail_at - 1, -1):
        s.buffer[s.trail[k].buffer].least = s.trail[k].least
    s.meta[TRAILED] = frame.trail_at
    for x in range(b.first, b.last):
        s.section[x].total += b.size
        s.section[x].across += 1
    s.section[b.last - 1].across -= 1
    b.offset = OPEN
    frame.placed = MINUS_ONE


@helper
def _consistent(s: State, low: int, high: int, floor: int) -> bool:
    """Section inference: what is open in a section lies above its floor, in whole.

    The floor is the least offset of an open buffer, at least ``floor``. One buffer low enough
    is witness enough; it is looked for anew only where the last one is placed or too high.
    """
    for x in range(low, high):
        section = s.section[x]
        if section.total == 0:
            continue
        highest = s.meta[CAPACITY] - section.total
        if floor > highest:
            return False
        w = section.witness
        if w < 0 or s.buffer[w].offset != OPEN or s.buffer[w].least > highest:
            found = False
            for k in range(section.who_at, section.who_end):
                j = s.rows[k]
                if s.buffer[j].offset == OPEN and s.buffer[j].least <= highest:
                    section.witness, found = j, True
                    break
            if not found:
                return False
    return True


@helper
def _hash(i: int, least: int) -> int:
    h = (i + 1) * 7046029254386353131 + least * 2862933555777941757
    h = (h ^ (h >> 29)) * 3202034522624059733
    return h ^ (h >> 32)


@helper
def _busiest(s: State, i: int) -> int:
    most = ZERO
    for x in range(s.buffer[i].first, s.buffer[i].last):
        if s.section[x].total > most:
            most = s.section[x].total
    return most


@helper
def _enter(s: State, owner: int, low: int, high: int, floor: int, after: int, sort: bool) -> bool:
    """Push a frame for the open buffers of the owner's list in these sections; False: none.

    ``after``: at offset ``floor`` only buffers from this place of the list on may follow.
    """
    f = s.meta[DEPTH] + 1
    frame = s.frame[f]
    frame.list_at = s.meta[TOP]
    n = frame.list_at
    for k in range(s.frame[owner].list_at, s.frame[owner].list_end):
        i = s.items[k]
        if s.buffer[i].offset == OPEN and s.buffer[i].first >= low and s.buffer[i].last <= high:
            if sort:
                s.buffer[i].busiest = _busiest(s, i)
            s.items[n] = i
            n += 1
    if n == frame.list_at:
        return False
    if sort:
        for k in range(frame.list_at + 1, n):
            i, at = s.items[k], k
            while at > frame.list_at and _before(s, i, s.items[at - 1]):
                s.items[at] = s.items[at - 1]
                at -= 1
            s.items[at] = i
    lowest_top, key, skipped = INFINITE, ZERO, MINUS_ONE
    for k in range(frame.list_at, n):
        i = s.items[k]
        least = s.buffer[i].least
        key += _hash(i, least)
        if least + s.buffer[i].size < lowest_top:
            lowest_top = least + s.buffer[i].size
    end = n
    for k in range(frame.list_at, n):
        i = s.items[k]
        b = s.buffer[i]
        if b.least < floor or (b.least == floor and k - frame.list_at < after):
            if b.least > skipped:
                skipped = b.least
        elif b.least < lowest_top and (b.twin < 0 or s.buffer[b.twin].offset != OPEN):
            at = end
            while at > n and s.buffer[s.items[at - 1]].least > b.least:
                s.items[at] = s.items[at - 1]
                at -= 1
            s.items[at] = i
            end += 1
    frame.owner, frame.low, frame.high, frame.floor = owner, low, high, floor
    frame.list_end, frame.next, frame.end = n, n, end
    frame.fails_from, frame.key, frame.placed = skipped + 1, key, MINUS_ONE
    known = s.failed[key & (len(s.failed) - 1)]
    if known.key == key and known.floor <= floor:
        frame.end = frame.next
    s.meta[DEPTH], s.meta[TOP] = f, end
    return True


@helper
def _split(s: State, f: int, low: int, high: int, from_: int, until: int) -> None:
    """Write the boundaries of the pieces into which the placement of ``f`` splits the rest."""
    top = s.meta[TOP]
    s.frame[f].piece = top
    s.items[top] = low
    top += 1
    for x in range(from_, until):
        if s.section[x].across == 0:
            s.items[top] = x + 1
            top += 1
    s.items[top] = high
    s.frame[f].pieces_end = top
    s.meta[TOP] = top + 1


@helper
def _descend(s: State, f: int) -> bool:
    """Go to the next piece that frame ``f`` left open, or its owners; False: all are solved."""
    while True:
        frame = s.frame[f]
        while frame.piece < frame.pieces_end:
            low, high = s.items[frame.piece], s.items[frame.piece + 1]
            floor, after = ZERO, ZERO
            whole = low == frame.low and high == frame.high and f > 0
            if f > 0:
                floor = s.buffer[frame.placed].offset
            if whole:
                k = frame.list_at
                while s.items[k] != frame.placed:
                    k += 1
                after = k - frame.list_at
            frame.piece += 1
            if _enter(s, f, low, high, floor, after, not whole):
                return True
        if f == 0:
            return False
        f = frame.owner


@helper
def _fail(s: State, f: int) -> int:
    """Frame ``f`` is exhausted: remember it, take back all of its group, return its owner."""
    frame = s.frame[f]
    known = s.failed[frame.key & (len(s.failed) - 1)]
    if known.key != frame.key or known.floor > frame.fails_from:
        known.key, known.floor = frame.key, frame.fails_from
    for g in range(f - 1, frame.owner, -1):
        _undo(s, g)
    s.meta[DEPTH] = frame.owner
    s.meta[TOP] = s.frame[frame.owner].end
    return frame.owner


@entry
def explore(s: State, nodes: int) -> int:
    """Search on for ``nodes`` placements: `RUNNING`, `SOLVED`, or `FAILED` where none exists.

    ``s`` is updated; once solved, ``s.buffer["offset"]`` is the packing in units.
    """
    stop = s.meta[NODES] + nodes
    if s.meta[NODES] == 0:
        if not _begin(s):
            return FAILED
        if not _descend(s, ZERO):
            return SOLVED
    while s.meta[NODES] < stop:
        f = s.meta[DEPTH]
        _undo(s, f)
        frame = s.frame[f]
        s.meta[TOP] = frame.end
        if frame.next == frame.end:
            if f == 0:
                return FAILED
            # The frame that the table answered at once is entered there already.
            _fail(s, f)
            continue
        i = s.items[frame.next]
        frame.next += 1
        s.meta[NODES] += 1
        if _place(s, f, i) and _consistent(s, frame.low, frame.high, s.buffer[i].offset):
            _split(s, f, frame.low, frame.high, s.buffer[i].first, s.buffer[i].last - 1)
            if not _descend(s, f):
                return SOLVED
    return RUNNING


@helper
def _begin(s: State) -> bool:
    """The root: all buffers in order, and the pieces that the problem falls into."""
    root, n, sections = s.frame[0], len(s.buffer), len(s.section)
    for i in range(n):
        b = s.buffer[i]
        b.least = _lift(s, i, ZERO)
        s.items[i] = i
        if b.least + b.size > b.limit:
            return False
    root.owner, root.placed, root.low, root.high = MINUS_ONE, MINUS_ONE, ZERO, sections
    root.list_at, root.list_end, root.next, root.end = ZERO, n, n, n
    s.meta[DEPTH], s.meta[TOP], s.meta[NODES] = ZERO, n, ONE
    if not _consistent(s, ZERO, sections, ZERO):
        return False
    _split(s, ZERO, ZERO, sections, ZERO, sections - 1)
    return True
