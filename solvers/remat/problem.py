"""The rematerialisation problem: operators, storages, and who reads and writes which.

Everything is an integer: bytes, and times in any one unit (fxmem uses nanoseconds).
Nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class RematProblem:
    """Operators in their given order and the storages that they read and write.

    A schedule is a sequence of operator numbers, some more than once. An operator reads
    the latest copy of each storage in ``reads`` and makes a new copy of each storage in
    ``writes``. A copy lives from the operator that makes it to the last operator that reads
    that copy; one that nobody reads lives for its own step alone. The last copy of a
    storage in ``keep`` lives to the end.

    Attributes
    ----------
    time : tuple of int
        Duration of each operator.
    size : tuple of int
        Bytes of each storage.
    reads, writes : tuple of tuple of int
        Storages of each operator. A storage has at most one writer; one without a writer
        is resident and costs nothing beyond ``resident_bytes``.
    workspace : tuple of int
        Bytes that each operator takes while it runs, beyond its outputs.
    reuse : tuple of tuple of int
        Storages that the operator may overwrite with its first output, in order of
        preference, if that copy is read here for the last time. A copy that was made before
        the turn and is read after it is never overwritten (a second backward needs it).
    once : frozenset of int
        Operators that run exactly once (effects, draws that cannot be replayed).
    ordered : tuple of int
        Operators whose first runs keep this order (random draws).
    turn : int or None
        The operator that stands for the turn from forward to backward. What runs before it
        is forward, what runs after it is backward.
    keep : frozenset of int
        Storages that are alive at the end (gradients, outputs).
    resident_bytes : int
        Bytes held throughout (parameters, inputs, optimizer state).
    """

    time: tuple[int, ...]
    size: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    workspace: tuple[int, ...] = ()
    reuse: tuple[tuple[int, ...], ...] = ()
    once: frozenset[int] = frozenset()
    ordered: tuple[int, ...] = ()
    turn: int | None = None
    keep: frozenset[int] = frozenset()
    resident_bytes: int = 0
    names: tuple[str, ...] = field(default=(), compare=False)
    storage_names: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        count = len(self.time)
        if not self.workspace:
            object.__setattr__(self, "workspace", (0,) * count)
        if not self.reuse:
            object.__setattr__(self, "reuse", ((),) * count)
        for name in ("reads", "writes", "workspace", "reuse"):
            if len(getattr(self, name)) != count:
                raise ValueError(f"{name} has {len(getattr(self, name))} rows, time has {count}")
        if any(value < 0 for value in (*self.time, *self.size, *self.workspace)):
            raise ValueError("times, sizes and workspaces must not be negative")
        seen: set[int] = set()
        for operator, written in enumerate(self.writes):
            for storage in written:
                if not 0 <= storage < len(self.size):
                    raise ValueError(f"operator {operator} writes unknown storage {storage}")
                if storage in seen:
                    raise ValueError(f"storage {storage} has two writers")
                seen.add(storage)
        for operator, read in enumerate(self.reads):
            for storage in read:
                if not 0 <= storage < len(self.size):
                    raise ValueError(f"operator {operator} reads unknown storage {storage}")

    @classmethod
    def from_edges(
        cls,
        size: Sequence[int],
        time: Sequence[int],
        edge: Iterable[tuple[int, int]],
        keep: Iterable[int] = (),
    ) -> RematProblem:
        """A plain graph: operator ``v`` writes storage ``v``; edge ``(u, v)``: ``v`` reads ``u``.

        Parameters
        ----------
        size, time : sequences of int
            Bytes of the output and duration of each operator.
        edge : iterable of (int, int)
            Who reads whose output.
        keep : iterable of int
            Outputs that must be alive at the end; none by default.

        Raises
        ------
        ValueError
            The lengths differ, an edge names no operator, or a value is negative.
        """
        if len(size) != len(time):
            raise ValueError(f"{len(size)} sizes but {len(time)} times")
        reads: list[list[int]] = [[] for _ in time]
        for source, target in edge:
            if not (0 <= source < len(time) and 0 <= target < len(time)):
                raise ValueError(f"edge ({source}, {target}) names an operator out of range")
            if source not in reads[target]:
                reads[target].append(source)
        return cls(
            time=tuple(int(t) for t in time),
            size=tuple(int(s) for s in size),
            reads=tuple(tuple(r) for r in reads),
            writes=tuple((v,) for v in range(len(time))),
            keep=frozenset(keep),
        )

    @property
    def count(self) -> int:
        """Number of operators."""
        return len(self.time)

    @cached_property
    def writer(self) -> tuple[int, ...]:
        """The operator that writes each storage, -1 for a resident."""
        writer = [-1] * len(self.size)
        for operator, written in enumerate(self.writes):
            for storage in written:
                writer[storage] = operator
        return tuple(writer)

    @cached_property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The operators whose outputs each operator reads, without repeats."""
        return tuple(
            tuple(dict.fromkeys(self.writer[s] for s in read if self.writer[s] >= 0))
            for read in self.reads
        )

    @cached_property
    def base_time(self) -> int:
        """Duration of every operator run once: no schedule that runs all takes less."""
        return sum(self.time)

    @cached_property
    def working_set(self) -> tuple[int, ...]:
        """Bytes that each operator needs at the very least while it runs, residents included.

        Its inputs, outputs and workspace; the first output costs nothing where an input
        of equal size may be overwritten.
        """
        needed = []
        for operator in range(self.count):
            held = {s for s in self.reads[operator] if self.writer[s] >= 0}
            total = sum(self.size[s] for s in held) + self.workspace[operator]
            total += sum(self.size[s] for s in self.writes[operator])
            if self.reuse[operator] and self.writes[operator]:
                total -= self.size[self.writes[operator][0]]
            needed.append(total + self.resident_bytes)
        return tuple(needed)

    @cached_property
    def floor(self) -> int:
        """A lower bound on the least feasible budget: the largest working set, or what is kept."""
        kept = sum(self.size[s] for s in self.keep if self.writer[s] >= 0)
        return max([kept + self.resident_bytes, *self.working_set])
