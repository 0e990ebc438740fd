"""A problem as flat integer arrays, the form that the numba kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .problem import RematProblem


# One bit for each in `evaluate.free_inputs`; a longer list is cut, which only overstates bytes.
MOST_REUSE = 60


class Arrays(NamedTuple):
    """Compressed rows: row ``v`` of ``x`` is ``x[x_at[v]:x_at[v + 1]]``.

    Attributes
    ----------
    time : int64[n]
        Duration of each operator.
    extra : int64[n]
        Outputs and workspace of each operator in bytes: what it needs beyond its inputs.
    gain : int64[n]
        Bytes that the operator saves when it may overwrite one of ``reuse``.
    size : int64[m]
        Bytes of each storage.
    writer : int64[m]
        Operator that writes each storage, -1 for a resident.
    keep : bool[m]
        Storages whose last copy lives to the end.
    single : bool[n]
        Operators that run exactly once.
    rank : int64[n]
        Place in ``ordered``, -1 for an operator that is not there.
    turn : int
        The turn, -1 where there is none.
    resident : int
        Bytes held throughout.
    reads, writes, reuse : rows of storages for each operator
        Residents are left out; of ``reuse`` only what an operator reads, at matching size.
    readers : rows of operators for each storage
    """

    time: np.ndarray
    extra: np.ndarray
    gain: np.ndarray
    size: np.ndarray
    writer: np.ndarray
    keep: np.ndarray
    single: np.ndarray
    rank: np.ndarray
    turn: int
    resident: int
    reads_at: np.ndarray
    reads: np.ndarray
    writes_at: np.ndarray
    writes: np.ndarray
    reuse_at: np.ndarray
    reuse: np.ndarray
    readers_at: np.ndarray
    readers: np.ndarray


def rows(lists: Iterable[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Pack lists into ``(start of each row, all entries)``."""
    lists = list(lists)
    at = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(row) for row in lists], out=at[1:])
    return at, np.array([x for row in lists for x in row], np.int64)


def flatten(problem: RematProblem) -> Arrays:
    """The arrays of ``problem``."""
    count, writer = problem.count, problem.writer
    reads = [tuple(dict.fromkeys(s for s in row if writer[s] >= 0)) for row in problem.reads]
    reuse: list[list[int]] = []
    for v in range(count):
        first = problem.size[problem.writes[v][0]] if problem.writes[v] else -1
        held = set(reads[v])
        fits = [s for s in problem.reuse[v] if s in held and problem.size[s] == first]
        reuse.append(fits[:MOST_REUSE])
    readers: list[list[int]] = [[] for _ in problem.size]
    for v, row in enumerate(reads):
        for s in row:
            readers[s].append(v)
    extra = [sum(problem.size[s] for s in problem.writes[v]) for v in range(count)]
    gain = [problem.size[problem.writes[v][0]] if reuse[v] else 0 for v in range(count)]
    rank = np.full(count, -1, np.int64)
    for place, v in enumerate(problem.ordered):
        rank[v] = place
    keep = np.zeros(len(problem.size), np.bool_)
    keep[[s for s in problem.keep if writer[s] >= 0]] = True
    single = np.zeros(count, np.bool_)
    single[list(problem.once)] = True
    if problem.turn is not None:
        single[problem.turn] = True
    return Arrays(
        np.array(problem.time, np.int64),
        np.array(extra, np.int64) + np.array(problem.workspace, np.int64),
        np.array(gain, np.int64),
        np.array(problem.size, np.int64),
        np.array(writer, np.int64),
        keep,
        single,
        rank,
        -1 if problem.turn is None else problem.turn,
        problem.resident_bytes,
        *rows(reads),
        *rows(problem.writes),
        *rows(reuse),
        *rows(readers),
    )
