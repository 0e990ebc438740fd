"""Record the allocator while a real step runs, from its forward to the end of backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import Variable
from torch.profiler import ProfilerActivity, profile


class Watch:
    """Watches one step at a time; does nothing while the user's own profiler runs."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._cuda: tuple[torch.device, int] | None = None

    @property
    def active(self) -> bool:
        """Is a step being watched?"""
        return self._profile is not None or self._cuda is not None

    def start(self, device: torch.device) -> None:
        """Begin at the start of a forward part; an unfinished watch is dropped."""
        self.drop()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._cuda = (device, torch.cuda.memory_allocated(device))
        elif not torch.autograd._profiler_enabled():
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.start()

    def drop(self) -> None:
        """Forget the step that is being watched."""
        if self._profile is not None:
            self._profile.stop()
        self._profile = self._cuda = None

    def stop_after_backward(self, tell: Callable[[int], None]) -> None:
        """When the running backward ends, call ``tell`` with the peak bytes above the start."""
        Variable._execution_engine.queue_callback(lambda: self._stop(tell))

    def _stop(self, tell: Callable[[int], None]) -> None:
        if self._cuda is not None:
            device, before = self._cuda
            self._cuda = None
            tell(int(torch.cuda.max_memory_allocated(device)) - before)
        elif self._profile is not None:
            recorded, self._profile = self._profile, None
            recorded.stop()
            live = peak = 0
            events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
            changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
            for _, change in changes:
                live += change
                peak = max(peak, live)
            tell(peak)
