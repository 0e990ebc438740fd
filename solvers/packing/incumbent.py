"""The lowest packing so far, and what is proved."""

from __future__ import annotations

from dataclasses import dataclass

from .greedy import Placed


@dataclass
class Incumbent:
    """The lowest packing so far and what is proved.

    Attributes
    ----------
    best : Placed
    bound : int
        No arena of fewer bytes exists.
    enough : int
        A packing of no more bytes will do; 0: only the lowest.
    """

    best: Placed
    bound: int
    enough: int

    @property
    def done(self) -> bool:
        """Found what will do, or proved that there is none."""
        return self.best.height <= max(self.enough, self.bound) or self.bound > self.enough > 0

    def offer(self, found: Placed | None) -> None:
        """Take ``found`` if it is lower."""
        if found is not None and found.height < self.best.height:
            self.best = found

    def prove(self, failed: int, unit: int) -> None:
        """No arena of ``failed`` bytes exists; ``unit``: all heights are multiples of it."""
        self.bound = max(self.bound, (failed // unit + 1) * unit)
