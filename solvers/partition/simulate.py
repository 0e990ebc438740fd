"""Seconds of a step: a schedule's lists as one graph, whose longest path is the step."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..jit import entry_of, stamp
from .schedules import Action, actions

entry = entry_of(stamp(__package__, [Path(__file__)]))
_KINDS = {"F": 0, "B": 1, "I": 2, "W": 3}


@lru_cache(maxsize=64)
def compiled(schedule: str, ranks: int, microbatches: int, chunks: int) -> NDArray[np.int64]:
    """Actions in an order in which each comes after what it waits for.

    Returns
    -------
    array (actions, 5)
        Kind, stage, the rank's action before, the action whose result it reads, the cut that
        the result crosses; -1 for none.
    """
    lists = actions(schedule, ranks, microbatches, chunks)
    last = ranks * chunks - 1
    number: dict[tuple[str, int, int], int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    before, place = [-1] * ranks, [0] * ranks
    while len(rows) < sum(map(len, lists)):
        for rank, order in enumerate(lists):
            while place[rank] < len(order):
                source, cut = _source(order[place[rank]], last)
                if source is not None and source not in number:
                    break
                _, kind, stage, m = order[place[rank]]
                number[kind, stage, m] = len(rows)
                read = -1 if source is None else number[source]
                rows.append((_KINDS[kind], stage, before[rank], read, cut))
                before[rank], place[rank] = len(rows) - 1, place[rank] + 1
    return np.array(rows, np.int64)


def _source(action: Action, last: int) -> tuple[tuple[str, int, int] | None, int]:
    """What an action reads, and over which cut."""
    _, kind, stage, m = action
    if kind == "W":
        return ("I", stage, m), -1
    if kind == "F":
        return (None, -1) if stage == 0 else (("F", stage - 1, m), stage - 1)
    return (("F", stage, m), -1) if stage == last else ((kind, stage + 1, m), stage)


@entry
def step_seconds(
    graph: NDArray[np.int64], seconds: NDArray[np.float64], link: NDArray[np.float64]
) -> float:
    """End of the last action.

    Parameters
    ----------
    graph : array (actions, 5)
        Of `compiled`.
    seconds : array (4, stages)
        Of F, B, I and W.
    link : array (stages - 1)
        Seconds that a transfer over each cut takes; transfers do not wait for one another.
    """
    end = np.zeros(len(graph))
    latest = 0.0
    for i in range(len(graph)):
        start = 0.0
        if graph[i, 2] >= 0:
            start = end[graph[i, 2]]
        if graph[i, 3] >= 0:
            ready = end[graph[i, 3]]
            if graph[i, 4] >= 0:
                ready += link[graph[i, 4]]
            start = max(start, ready)
        end[i] = start + seconds[graph[i, 0], graph[i, 1]]
        latest = max(latest, end[i])
    return latest
