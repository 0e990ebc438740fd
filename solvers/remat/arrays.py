"""A problem as flat integer arrays, the form that the numba kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .problem import RematProblem

# One bit for each in `evaluate.free_inputs`; a longer list is cut, which only overstates bytes.
MOST_REUSE = 60


ROWS = ("reads", "writes", "reuse")
OPERATOR = np.dtype(
    [(name, np.int64) for name in ("time", "extra", "gain", "single", "rank")]
    + [(row + end, np.int64) for row in ROWS for end in ("_at", "_end")],
    align=True,
)
STORAGE = np.dtype(
    [(name, np.int64) for name in ("size", "writer", "keep", "readers_at", "readers_end")],
    align=True,
)


class Arrays(NamedTuple):
    """Records, so that numba passes few arguments and compiles in bearable time.

    Attributes
    ----------
    op : OPERATOR[n]
        ``time``; ``extra``: bytes of outputs and workspace; ``gain``: bytes saved where one
        of ``reuse`` may be overwritten; ``single``: runs exactly once; ``rank``: place in
        ``ordered``, -1 if not there; ``reads_at``, ``reads_end`` and so on: where its
        storages stand in ``rows``. Residents are left out; of ``reuse`` only what the
        operator reads, at matching size, is there.
    storage : STORAGE[m]
        ``size`` in bytes; ``writer``, -1 for a resident; ``keep``: its last copy lives to the
        end; ``readers_at``, ``readers_end``: its readers in ``rows``.
    rows : int64[...]
        All lists, one after the other.
    turn : int
        The turn, -1 where there is none.
    resident : int
        Bytes held throughout.
    """

    op: np.ndarray
    storage: np.ndarray
    rows: np.ndarray
    turn: int
    resident: int


def _append(rows: list[int], table: np.ndarray, name: str, lists: Sequence[Sequence[int]]) -> None:
    for i, entries in enumerate(lists):
        table[name + "_at"][i] = len(rows)
        rows.extend(entries)
        table[name + "_end"][i] = len(rows)


def flatten(problem: RematProblem) -> Arrays:
    """The arrays of ``problem``."""
    count, writer, size = problem.count, problem.writer, problem.size
    reads = [tuple(dict.fromkeys(s for s in row if writer[s] >= 0)) for row in problem.reads]
    reuse: list[list[int]] = []
    for v in range(count):
        first = size[problem.writes[v][0]] if problem.writes[v] else -1
        held = set(reads[v])
        fits = [s for s in problem.reuse[v] if s in held and size[s] == first]
        reuse.append(fits[:MOST_REUSE])
    readers: list[list[int]] = [[] for _ in size]
    for v, row in enumerate(reads):
        for s in row:
            readers[s].append(v)
    op, storage = np.zeros(count, OPERATOR), np.zeros(len(size), STORAGE)
    for v in range(count):
        outputs = sum(size[s] for s in problem.writes[v])
        op["extra"][v] = outputs + problem.workspace[v]
        op["gain"][v] = size[problem.writes[v][0]] if reuse[v] else 0
        op["single"][v] = v in problem.once or v == problem.turn
    op["time"] = problem.time
    op["rank"] = -1
    for place, v in enumerate(problem.ordered):
        op["rank"][v] = place
    storage["size"], storage["writer"] = size, writer
    for s in problem.keep:
        storage["keep"][s] = writer[s] >= 0
    rows: list[int] = []
    tables: tuple[Sequence[Sequence[int]], ...] = (reads, problem.writes, reuse)
    for name, lists in zip(ROWS, tables, strict=True):
        _append(rows, op, name, lists)
    _append(rows, storage, "readers", readers)
    turn = -1 if problem.turn is None else problem.turn
    return Arrays(op, storage, np.array(rows, np.int64), turn, problem.resident_bytes)
