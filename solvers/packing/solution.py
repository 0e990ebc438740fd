"""What a solver answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PackingSolution:
    """Where each buffer lies, and what is known of it.

    Attributes
    ----------
    offset : tuple of int
        Offset of each buffer; empty if none was found.
    height : int
        Bytes of the arena: the highest top of a buffer.
    lower_bound : int
        No arena is smaller, as far as is proved.
    status : str
        ``"optimal"``: no lower arena exists. ``"feasible"``: within the capacity, if one was
        given. ``"infeasible"``: none fits the capacity (proved). ``"unknown"``: time ran out
        before one was found that does. With the last two, ``offset`` is the lowest packing that
        was found, higher than the capacity, if any.
    """

    offset: tuple[int, ...]
    height: int
    lower_bound: int
    status: str

    @property
    def ratio(self) -> float:
        """``height / lower_bound``; 1 when proved optimal."""
        return self.height / self.lower_bound if self.lower_bound else 1.0
