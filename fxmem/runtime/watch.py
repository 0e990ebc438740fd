"""Record the allocator while a user's real step runs, from forward to the end of backward.

Only for steps whose loss lies outside the module: what the user's own code takes between
forward and backward cannot be rehearsed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.autograd import Variable
from torch.profiler import ProfilerActivity, profile

from ..allocator import running_peak


class Watch:
    """Watches one step at a time; does nothing while the user's own profiler runs."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._ended_ns: int | None = None
        self._tell: Callable[[int], None] | None = None

    def start(self, tell: Callable[[int], None]) -> None:
        """Begin at the start of a forward part; ``tell`` gets the peak bytes above the start."""
        if torch.autograd._profiler_enabled():
            return
        self._ended_ns, self._tell = None, tell
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.start()

    def mark_end(self) -> None:
        """Call in the backward part: the step ends when the running backward pass does."""
        if self._profile is not None:
            Variable._execution_engine.queue_callback(self._note_end)

    def _note_end(self) -> None:
        # Stopping here would leave the caller's thread with a profiler that is gone: the
        # engine restores the thread state it found. The events after this are cut off later.
        self._ended_ns = time.time_ns()

    def finish(self) -> None:
        """Stop, if a step was watched, and tell its peak if it ran to the end."""
        if self._profile is None:
            return
        recorded, self._profile = self._profile, None
        recorded.stop()
        if self._ended_ns is not None and self._tell is not None:
            events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
            self._tell(running_peak(events, until_ns=self._ended_ns))
