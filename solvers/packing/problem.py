"""The packing problem: buffers that live for a time each, to be laid out in one arena.

It is the two-dimensional half of dynamic storage allocation: times are given, offsets are
sought. Everything is an integer. Nothing here knows torch.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from .overlap import first_overlap

FREE = -1
# Sums of sizes must stay well inside 64 bits.
MOST_BYTES = 1 << 60


class PackingProblemError(ValueError):
    """The numbers are no packing problem; the message names the first that is wrong."""


@dataclass(frozen=True)
class PackingProblem:
    """Buffers to lay out in one arena; two that live at one time may not overlap.

    Attributes
    ----------
    lower, upper : tuple of int
        Buffer ``i`` lives at times ``t`` with ``lower[i] <= t < upper[i]``.
    size : tuple of int
        Bytes of each buffer. One of no bytes is allowed and never in the way.
    alignment : int
        Every offset is a multiple of it.
    fixed : tuple of int
        Offsets that are given, -1 (or None, when it is made) where one is to be chosen.
        Left out: all are to be chosen.

    Raises
    ------
    PackingProblemError
        Lengths differ, a buffer has no time to live or less than no bytes, a fixed offset is
        not aligned, or two fixed buffers overlap.
    """

    lower: Sequence[int]
    upper: Sequence[int]
    size: Sequence[int]
    alignment: int = 1
    fixed: Sequence[int | None] = ()

    def __post_init__(self) -> None:
        fixed = [FREE if offset is None else offset for offset in self.fixed]
        fields = {"lower": self.lower, "upper": self.upper, "size": self.size}
        fields["fixed"] = fixed or [FREE] * len(self.size)
        for name, values in fields.items():
            if len(values) != len(self.size):
                raise PackingProblemError(f"{len(values)} of {name} for {len(self.size)} sizes")
            object.__setattr__(self, name, _integers(name, values))
        object.__setattr__(self, "alignment", _integers("alignment", [self.alignment])[0])
        if self.alignment < 1:
            raise PackingProblemError(f"alignment {self.alignment} is below 1")
        rows = zip(self.lower, self.upper, self.size, self.offsets_given, strict=True)
        for i, (low, high, size, offset) in enumerate(rows):
            if size < 0:
                raise PackingProblemError(f"buffer {i} has size {size}, below 0")
            if high <= low:
                raise PackingProblemError(f"buffer {i} lives from {low} to {high}, no time at all")
            if offset < FREE or (offset != FREE and offset % self.alignment):
                raise PackingProblemError(
                    f"buffer {i} is fixed at {offset}, no multiple of alignment {self.alignment}"
                )
        most = max((offset + self.alignment for offset in self.offsets_given), default=0)
        if most + sum(self.size) + self.count * self.alignment > MOST_BYTES:
            raise PackingProblemError("sizes sum up to more than 2**60; use a larger unit")
        self._check_fixed()

    def _check_fixed(self) -> None:
        fixed = [i for i, offset in enumerate(self.offsets_given) if offset != FREE]
        found = first_overlap(self.lower, self.upper, self.size, self.offsets_given, fixed)
        if found:
            raise PackingProblemError(f"fixed buffers {found[0]} and {found[1]} overlap")

    @classmethod
    def read_csv(cls, path: str | Path, alignment: int = 1) -> PackingProblem:
        """The instance in a table with columns ``lower``, ``upper``, ``size``.

        A column ``fixed`` may hold offsets that are given; empty or -1 where there is none.

        Raises
        ------
        PackingProblemError
            The file is no such instance.
        OSError
            It cannot be read.
        """
        with open(path, newline="") as text:
            rows = list(csv.DictReader(text))
        try:
            lower, upper, size = ([int(r[c]) for r in rows] for c in ("lower", "upper", "size"))
            fixed = [int(row.get("fixed") or FREE) for row in rows]
            return cls(lower, upper, size, alignment, fixed)
        except (KeyError, TypeError, ValueError) as error:
            raise PackingProblemError(
                f"{path} is no instance with whole lower, upper and size: {error!r}"
            ) from error

    @property
    def count(self) -> int:
        """Number of buffers."""
        return len(self.size)

    @property
    def offsets_given(self) -> tuple[int, ...]:
        """``fixed``, -1 where free."""
        return tuple(self.fixed)  # type: ignore[arg-type]

    @cached_property
    def lower_bound(self) -> int:
        """No arena is smaller: the largest sum of sizes, each rounded up, that live at once.

        The buffer on top is not rounded; fixed buffers reach at least to their own tops.
        """
        if not self.count:
            return 0
        size = np.array(self.size, np.int64)
        rounded = -(-size // self.alignment) * self.alignment
        times, place = np.unique(np.concatenate([self.lower, self.upper]), return_inverse=True)
        change = np.zeros(len(times), np.int64)
        np.add.at(change, place, np.concatenate([rounded, -rounded]))
        live = int(np.cumsum(change).max()) - int((rounded - size).max())
        tops = [
            offset + s
            for offset, s in zip(self.offsets_given, self.size, strict=True)
            if offset != FREE
        ]
        return max(live, int(size.max()), *tops, 0)


def _integers(name: str, values: Sequence[object]) -> tuple[int, ...]:
    """``values`` as int, from anything that holds whole numbers."""
    whole = []
    for i, value in enumerate(values):
        try:
            number = int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError) as error:
            raise PackingProblemError(f"{name}[{i}] is {value!r}, no whole number") from error
        if number != value:
            raise PackingProblemError(f"{name}[{i}] is {value!r}, no whole number")
        whole.append(number)
    return tuple(whole)
