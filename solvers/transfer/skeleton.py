"""A schedule without times: runs, the copies that they read, and the bytes held at the least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..remat import RematProblem
from .reduction import Reduced


@dataclass
class Copy:
    """A copy of a storage.

    Attributes
    ----------
    storage : int
    made : int
        The run that makes it; of a loaded one, the first run that reads it.
    loaded : bool
    reads : list of int
        Runs that read it, in order; one past the last run if it is kept.
    """

    storage: int
    made: int
    loaded: bool = False
    reads: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last run that it lives through."""
        return self.reads[-1] if self.reads else self.made


@dataclass(frozen=True)
class Skeleton:
    """Runs and copies.

    Attributes
    ----------
    runs : tuple of int
        Operators.
    copies : tuple of Copy
        Loaded ones that nobody reads are left out.
    during : int64[runs]
        Bytes during each run, when a copy out ends before the last reader of what it moved, and
        a copy in begins right before the first.
    overwritten : frozenset of (int, int)
        (run, storage) where a run overwrites that input.
    turn : int
        The run of the turn, -1 where there is none.
    """

    runs: tuple[int, ...]
    copies: tuple[Copy, ...]
    during: np.ndarray
    overwritten: frozenset[tuple[int, int]]
    turn: int


def skeleton(problem: RematProblem, reduced: Reduced, sequence: Sequence[int]) -> Skeleton:
    """Read a schedule of the reduced problem.

    Parameters
    ----------
    problem : RematProblem
        The given problem.
    reduced : Reduced
    sequence : sequence of int
        A schedule of ``reduced.remat``.
    """
    runs: list[int] = []
    copies: list[Copy] = []
    latest: dict[int, Copy] = {}
    for v in sequence:
        operator, s = reduced.operator[v], reduced.loaded[v]
        if operator < 0:
            # Right after its writer, a load stands for what the writer made.
            if runs[-1] != problem.writer[s]:
                latest[s] = Copy(s, -1, loaded=True)
                copies.append(latest[s])
            continue
        here = len(runs)
        for r in dict.fromkeys(problem.reads[operator]):
            if problem.writer[r] >= 0:
                copy = latest[r]
                if copy.loaded and not copy.reads:
                    copy.made = here
                copy.reads.append(here)
        for r in problem.writes[operator]:
            latest[r] = Copy(r, here)
            copies.append(latest[r])
        runs.append(operator)
    for s in problem.keep & latest.keys():
        copy = latest[s]
        copy.made = len(runs) if copy.loaded and not copy.reads else copy.made
        copy.reads.append(len(runs))
    copies = [c for c in copies if c.reads or not c.loaded]
    return measure(problem, tuple(runs), tuple(copies))


def measure(problem: RematProblem, runs: tuple[int, ...], copies: tuple[Copy, ...]) -> Skeleton:
    """The bytes of ``runs`` with these copies; those of a storage in their order."""
    turn = runs.index(problem.turn) if problem.turn is not None else -1
    change = np.zeros(len(runs) + 2, np.int64)
    dying: dict[int, dict[int, Copy]] = {}
    for copy in copies:
        size = problem.size[copy.storage]
        change[copy.made] += size
        change[copy.last + 1 if copy.last <= len(runs) else len(runs) + 1] -= size
        if copy.reads:
            dying.setdefault(copy.last, {})[copy.storage] = copy
    during = np.cumsum(change)[: len(runs)] + problem.resident_bytes
    overwritten = set()
    for p, v in enumerate(runs):
        during[p] += problem.workspace[v]
        if not problem.writes[v]:
            continue
        first = problem.size[problem.writes[v][0]]
        for s in problem.reuse[v]:
            victim = dying.get(p, {}).get(s)
            if victim is None or s not in problem.reads[v] or problem.size[s] != first:
                continue
            before = victim.made <= turn if victim.loaded else victim.made < turn
            if not (before and turn < p):
                during[p] -= first
                overwritten.add((p, s))
                break
    return Skeleton(runs, copies, during, frozenset(overwritten), turn)
