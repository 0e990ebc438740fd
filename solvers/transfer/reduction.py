"""For a chosen set of storages to move: an ordinary rematerialisation problem.

A moved storage is never computed again; instead it may be loaded again. Its writer makes a token of
no bytes, and an operator ``load`` that reads the token makes the storage. The first load, right
after the writer, stands for the value that the writer made; each later one for a copy back. A load
needs nothing in memory, so whoever needs the storage, be it a backward operator or one that is
recomputed, gets it at the price of a transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..remat import RematProblem


@dataclass(frozen=True)
class Reduced:
    """The problem, and what its operators stand for.

    Attributes
    ----------
    remat : RematProblem
    operator : tuple of int
        The operator of the given problem, -1 for a load.
    loaded : tuple of int
        The storage that a load makes, else -1.
    """

    remat: RematProblem
    operator: tuple[int, ...]
    loaded: tuple[int, ...]


def reduce(problem: RematProblem, price: Mapping[int, int]) -> Reduced:
    """Split the writers of the storages to move.

    Parameters
    ----------
    problem : RematProblem
    price : mapping from storage to int
        Time that a load is taken to cost, for each storage to move.

    Returns
    -------
    Reduced
        While a split writer runs, the storage counts as its workspace. What the writer saves by
        overwriting an input is lost where its first output is moved: bytes are overstated then,
        never understated.
    """
    token = {s: len(problem.size) + i for i, s in enumerate(sorted(price))}
    operator: list[int] = []
    loaded: list[int] = []
    place: dict[int, int] = {}
    time, reads, writes, workspace, reuse = [], [], [], [], []
    for v in range(problem.count):
        place[v] = len(operator)
        moved = [s for s in problem.writes[v] if s in token]
        operator.append(v)
        loaded.append(-1)
        time.append(problem.time[v])
        reads.append(problem.reads[v])
        writes.append(tuple(token.get(s, s) for s in problem.writes[v]))
        workspace.append(problem.workspace[v] + sum(problem.size[s] for s in moved))
        reuse.append(problem.reuse[v])
        for s in moved:
            operator.append(-1)
            loaded.append(s)
            time.append(price[s])
            reads.append((token[s],))
            writes.append((s,))
            workspace.append(0)
            reuse.append(())
    remat = RematProblem(
        time=tuple(time),
        size=(*problem.size, *(0 for _ in token)),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(workspace),
        reuse=tuple(reuse),
        once=frozenset(place[v] for v in problem.once),
        ordered=tuple(place[v] for v in problem.ordered),
        turn=None if problem.turn is None else place[problem.turn],
        keep=problem.keep,
        resident_bytes=problem.resident_bytes,
    )
    return Reduced(remat, tuple(operator), tuple(loaded))
