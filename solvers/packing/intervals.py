"""Times boiled down to what matters: which buffers live together.

A *section* is a moment at which the set of live buffers is contained in no other moment's, so
that two buffers meet if and only if they share a section. Each buffer lives in consecutive
sections.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Intervals:
    """The sections of each buffer.

    Attributes
    ----------
    first, last : int64[n]
        Buffer ``i`` lives in the sections ``first[i], ..., last[i] - 1``.
    sections : int
        How many sections there are.
    """

    first: np.ndarray
    last: np.ndarray
    sections: int

    @classmethod
    def of(cls, lower: np.ndarray, upper: np.ndarray) -> Intervals:
        """Sections of buffers that live in ``[lower, upper)``; at least one buffer."""
        times = np.unique(np.concatenate([lower, upper]))
        begin, end = np.searchsorted(times, lower), np.searchsorted(times, upper)
        starts, ends = (np.bincount(at, minlength=len(times)) for at in (begin, end))
        # Between times k and k + 1 lives all that lived before, unless something ends at k + 1,
        # and nothing but what lived at the last such moment, unless something started since.
        closing = np.flatnonzero(ends[1:])
        started = np.cumsum(starts)[closing]
        kept = closing[np.diff(started, prepend=0) > 0]
        return cls(np.searchsorted(kept, begin), np.searchsorted(kept, end), len(kept))

    def totals(self, size: np.ndarray) -> np.ndarray:
        """Sum of the sizes in each section, int64[sections]."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.first, size)
        np.subtract.at(change, self.last, size)
        return np.cumsum(change)[:-1]

    def busiest(self, totals: np.ndarray) -> np.ndarray:
        """The largest of ``totals`` that each buffer lives through, int64[n]."""
        level = np.frexp(self.last - self.first)[1] - 1  # 2**level sections fit in its life
        found = np.empty(len(level), np.int64)
        doubled = totals  # entry s: the largest of 2**k totals from s on
        for k in range(int(level.max()) + 1):
            if k:
                half = 1 << (k - 1)
                doubled = np.maximum(doubled[:-half], doubled[half:])
            at = level == k
            left, right = doubled[self.first[at]], doubled[self.last[at] - (1 << k)]
            found[at] = np.maximum(left, right)
        return found

    def pairs(self) -> int:
        """How many ordered pairs of buffers meet."""
        began = np.searchsorted(np.sort(self.first), self.last)
        gone = np.searchsorted(np.sort(self.last), self.first, "right")
        return int((began - gone - 1).sum())
