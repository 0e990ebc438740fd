"""The solver on a folder of published instances."""

from __future__ import annotations

import json
import re
import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .auto import pack
from .check import check
from .problem import PackingProblem
from .warm import warm_up

COLUMNS = ("instance", "buffers", "capacity", "height", "bound", "ratio", "status", "seconds")


@dataclass(frozen=True)
class Row:
    """One instance.

    Attributes
    ----------
    capacity : int or None
        Bytes within which a packing was asked for; None: the lowest.
    height, bound : int
        Bytes of the arena, and of the smallest one possible as far as is proved.
    seconds : float
        Without loading kernels.
    """

    instance: str
    buffers: int
    capacity: int | None
    height: int
    bound: int
    status: str
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of `COLUMNS`."""
        found = self.height > 0
        return (
            self.instance,
            str(self.buffers),
            f"{self.capacity:,}" if self.capacity is not None else "–",
            f"{self.height:,}" if found else "–",
            f"{self.bound:,}",
            f"{self.height / self.bound:.4f}" if found and self.bound else "–",
            self.status,
            f"{self.seconds:.2f}",
        )


def compile_seconds() -> float:
    """Seconds to load or compile all kernels, if that has not been done yet."""
    began = clock.monotonic()
    warm_up()
    return clock.monotonic() - began


def instances(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """Files of ``folder`` that end as instances do, and whose names begin with one of ``only``."""
    found = sorted(folder.glob("*.csv"))
    return [path for path in found if not only or path.name.startswith(tuple(only))]


def bench(
    folder: Path,
    seconds: float,
    lowest: bool = False,
    capacity: int | None = None,
    alignment: int = 1,
    only: Sequence[str] = (),
) -> Iterator[Row]:
    """A row for each instance, as soon as it is known; every answer is checked before.

    Parameters
    ----------
    folder : Path
        Of CSV files. A number in the name, as in ``A.1048576.csv``, is the capacity.
    seconds : float
        Time limit of each.
    lowest : bool
        Seek the lowest packing whatever the name says.
    capacity : int, optional
        Used instead of the one in the name.
    alignment : int
    only : sequence of str
        Names begin with one of them; none: all.

    Raises
    ------
    PackingProblemError
        A file is no instance.
    """
    compile_seconds()
    for path in instances(folder, only):
        problem = PackingProblem.read_csv(path, alignment)
        named = re.search(r"\.(\d+)$", path.stem)
        limit = None if lowest else capacity or (int(named[1]) if named else None)
        began = clock.monotonic()
        answer = pack(problem, limit, seconds)
        took = clock.monotonic() - began
        height = check(problem, answer.offset) if answer.offset else 0
        if height != answer.height:
            raise AssertionError(f"{path.stem}: {height} bytes, not {answer.height}")
        if answer.status in ("optimal", "feasible") and limit is not None and height > limit:
            raise AssertionError(f"{path.stem}: {height} bytes over {limit}")
        yield Row(path.stem, problem.count, limit, height, answer.lower_bound, answer.status, took)


def to_json(rows: Sequence[Row]) -> str:
    """Rows as a JSON list of objects."""
    return json.dumps([asdict(row) for row in rows], indent=1)
