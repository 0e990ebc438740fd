"""Offsets in one arena for what a step asks of the allocator, from a recording of one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .solvers.packing import PackingProblem, pack

#: Of each block; PyTorch's own CPU allocator aligns to the same (c10/core/alignment.h).
ALIGNMENT = 64

_HUGE_PAGE = 2 << 20
_SMALL_SEGMENT = 64 << 10

# A step of a few bytes is not worth a long search for its last per cent.
_BYTES_A_SECOND = 32 << 20


@dataclass(frozen=True)
class Request:
    """One block that the step asks for.

    Attributes
    ----------
    operator : str
        Node of the traced graph that runs as it is asked for.
    phase : str
        ``"forward"`` or ``"backward"``.
    bytes : int
    start, end : int
        Allocator events of the step between which it lives; ``end`` is the number of all
        events for what leaves the step.
    offset : int or None
        In the arena; None: from the ordinary allocator.
    """

    operator: str
    phase: str
    bytes: int
    start: int
    end: int
    offset: int | None


@dataclass(frozen=True)
class ArenaPlan:
    """One arena for a step.

    Attributes
    ----------
    requests : tuple of Request
        In the order in which the step asks.
    arena_bytes : int
    live_bytes : int
        Largest sum of the blocks in it that live at once: no arena can be smaller.
    segment_bytes : int
        The arena's memory is taken and given back in parts of this size.
    peak_bytes : int
        Most that the step holds at once, above what is there at its start: the arena's
        segments from their first use on, and what does not come from the arena.
    outside_bytes : int
        Of that, what does not come from the arena, when the step ends.
    """

    requests: tuple[Request, ...]
    arena_bytes: int
    live_bytes: int
    segment_bytes: int
    peak_bytes: int
    outside_bytes: int

    @property
    def ratio(self) -> float:
        """Arena bytes as a multiple of `live_bytes`."""
        return self.arena_bytes / self.live_bytes if self.live_bytes else 1.0

    @property
    def share(self) -> float:
        """Part of the bytes that the step asks for which comes from the arena."""
        total = sum(r.bytes for r in self.requests)
        return sum(r.bytes for r in self.requests if r.offset is not None) / total if total else 1.0

    @property
    def unplaced(self) -> Mapping[str, int]:
        """Operator -> bytes that do not come from the arena: results that leave the step."""
        found: Counter[str] = Counter()
        for request in self.requests:
            if request.offset is None:
                found[request.operator] += request.bytes
        return dict(found.most_common())

    def to_row(self) -> dict[str, Any]:
        """As JSON can hold it."""
        row: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        row["requests"] = [[getattr(r, f.name) for f in fields(r)] for r in self.requests]
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ArenaPlan:
        """What `to_row` made."""
        return cls(**{**row, "requests": tuple(Request(*r) for r in row["requests"])})


def plan_arena(
    events: np.ndarray,
    turn: int,
    operators: Sequence[str],
    tangent_bytes: int = 0,
    time_limit: float | None = None,
    alignment: int = ALIGNMENT,
) -> ArenaPlan | None:
    """Choose an offset for every block but those of the forward part that leave the step.

    Gradients lie in the arena until they are freed; a loss may be kept for good.

    Parameters
    ----------
    events : array of shape (n, 3)
        Block, bytes (below zero: freed) and operator number, as `runtime.native` records.
    turn : int
        How many of the events belong to the forward part.
    operators : sequence of str
        Name of each operator number.
    tangent_bytes : int
        Held throughout the backward part for others: what it starts from.
    time_limit : float, optional
        Seconds for the packing; left out, more for a larger step, and at most two.
    alignment : int
        Bytes of which all offsets are multiples.

    Returns
    -------
    ArenaPlan or None
        None where nothing could lie in an arena.
    """
    born, died, size, operator = _lifetimes(events)
    inside = (died < len(events)) | (born >= turn)
    if not inside.any():
        return None
    rounded = -(-size // alignment) * alignment
    problem = PackingProblem(
        born[inside].tolist(), died[inside].tolist(), rounded[inside].tolist(), alignment=alignment
    )
    if time_limit is None:
        time_limit = min(2.0, 0.02 + problem.lower_bound / _BYTES_A_SECOND)
    solution = pack(problem, time_limit=time_limit)
    offset = np.full(len(size), -1)
    offset[inside] = solution.offset
    height = int(solution.height)
    segment = _HUGE_PAGE if height >= 16 * _HUGE_PAGE else _SMALL_SEGMENT
    held = np.zeros(len(events), np.int64)
    np.add.at(held, born[~inside], size[~inside])
    outside = int(held.sum())
    held[turn : turn + 1] += tangent_bytes
    for first, count in zip(*_first_uses(born, offset, size, segment, height), strict=True):
        held[first] += count
    requests = tuple(
        Request(
            operators[operator[i]],
            "forward" if born[i] < turn else "backward",
            int(size[i]),
            int(born[i]),
            int(died[i]),
            int(offset[i]) if offset[i] >= 0 else None,
        )
        for i in range(len(size))
    )
    peak = int(np.cumsum(held).max())
    return ArenaPlan(requests, height, int(solution.lower_bound), segment, peak, outside)


def _lifetimes(events: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each block: event at which it comes, at which it goes, bytes, operator number."""
    made = np.flatnonzero(events[:, 1] > 0)
    freed = np.flatnonzero(events[:, 1] < 0)
    died = np.full(len(made), len(events))
    died[events[freed, 0]] = freed
    return made, died, events[made, 1], events[made, 2]


def _first_uses(
    born: np.ndarray, offset: np.ndarray, size: np.ndarray, segment: int, height: int
) -> tuple[list[int], list[int]]:
    """Event of each used segment's first use, and its bytes."""
    first: dict[int, int] = {}
    for i in np.argsort(born, kind="stable"):
        if offset[i] >= 0:
            for s in range(offset[i] // segment, -(-(offset[i] + size[i]) // segment)):
                first.setdefault(s, int(born[i]))
    return list(first.values()), [min(segment, height - s * segment) for s in first]
