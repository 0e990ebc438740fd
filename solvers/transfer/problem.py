"""The transfer problem: storages may also be moved to a slower tier and back.

Bytes and times are integers (fxmem uses nanoseconds). Nothing here knows torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..remat import RematProblem

Kind = Literal["run", "out", "out_done", "in", "in_done"]


class Action(NamedTuple):
    """One entry of a schedule, in the order in which the processor meets them.

    ``run``: operator ``index`` runs. ``out``: the copy of storage ``index`` to ``tier`` is asked
    for. ``out_done``: wait until it is there; a copy that nobody reads later is free from here
    on. ``in``: a new copy of storage ``index`` is allocated, and asked back from ``tier``.
    ``in_done``: wait for it; who reads the storage from here on reads this copy.
    """

    kind: Kind
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    tier: int = 0


@dataclass(frozen=True)
class Tier:
    """Slower memory behind one link in each direction.

    Attributes
    ----------
    name : str
        Such as a directory, or ``"host"``.
    write_bandwidth, read_bandwidth : int
        Bytes a second.
    write_latency, read_latency : int
        Nanoseconds of each transfer, beside its bytes.
    write_toll, read_toll : int
        Nanoseconds for each 10**9 bytes that a transfer takes from the processor, where the
        system copies with it or shares its memory's bandwidth.
    capacity : int or None
        Bytes it can hold.
    """

    name: str
    write_bandwidth: int
    read_bandwidth: int
    write_latency: int = 0
    read_latency: int = 0
    capacity: int | None = None
    write_toll: int = 0
    read_toll: int = 0

    def write_time(self, size: int) -> int:
        """Nanoseconds that the link is taken by a copy out of ``size`` bytes."""
        return self.write_latency + -(-size * 1_000_000_000 // self.write_bandwidth)

    def read_time(self, size: int) -> int:
        """Nanoseconds that the link is taken by a copy back of ``size`` bytes."""
        return self.read_latency + -(-size * 1_000_000_000 // self.read_bandwidth)

    def write_work(self, size: int) -> int:
        """Nanoseconds that the processor loses to a copy out of ``size`` bytes."""
        return -(-size * self.write_toll // 1_000_000_000)

    def read_work(self, size: int) -> int:
        """Nanoseconds that the processor loses to a copy back of ``size`` bytes."""
        return -(-size * self.read_toll // 1_000_000_000)


@dataclass(frozen=True)
class TransferProblem:
    """A rematerialisation problem with tiers.

    A transfer occupies its link, one direction of one tier, and the processor only for the
    tier's toll, which it pays as it asks; each link serves in the order in which it is asked. The
    step takes its makespan.

    Attributes
    ----------
    remat : RematProblem
        Times in nanoseconds.
    tiers : tuple of Tier
    movable : frozenset of int
        Storages that may be moved.
    """

    remat: RematProblem
    tiers: tuple[Tier, ...]
    movable: frozenset[int] = field(default_factory=frozenset)
