"""Tell a profiler which of several devices a step is at work on.

Logical devices share one memory. What is asked for while operators of a stage run belongs to
that stage's device until it is freed, whoever frees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.profiler import record_function

#: Names of the marks in a recording, before the number of the stage.
MARK = "fxmem::device "


def marker(stages: Sequence[int | None]) -> Callable[[int], None]:
    """A function that is called with each node's number before it runs, as `compile.boxed` does.

    Parameters
    ----------
    stages : sequence of int or None
        The stage of each node; None for nodes that take no memory.
    """
    changes: dict[int, int] = {}
    latest: int | None = None
    for position, stage in enumerate(stages):
        if stage is not None and stage != latest:
            changes[position] = latest = stage

    def mark(position: int) -> None:
        if position in changes and torch.autograd._profiler_enabled():
            with record_function(f"{MARK}{changes[position]}"):
                pass

    return mark


def stage_in(name: str) -> int | None:
    """The stage that an event of this name begins."""
    return int(name.removeprefix(MARK)) if name.startswith(MARK) else None
