"""What the allocator itself reports: exact bytes, never resident set size."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

# Kineto, read at its first recording: it would print two lines to stderr for each.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

_MARK = "fxmem::call"


@dataclass(frozen=True)
class Recording:
    """Allocator events of some calls.

    Attributes
    ----------
    timeline : tuple of (int, int)
        Nanoseconds since the start, and bytes above those at the start, after each event.
    """

    timeline: tuple[tuple[int, int], ...]

    @property
    def peak(self) -> int:
        """Largest number of bytes above those at the start."""
        return max((live for _, live in self.timeline), default=0)


def record(call: Callable[[], Any]) -> Recording:
    """Run ``call`` once and sum the CPU allocator's events while it runs."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in recorded.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    live, timeline = 0, []
    for moment, delta in events:
        live += delta
        timeline.append((moment - events[0][0], live))
    return Recording(tuple(timeline))


def peak_of_calls(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[int]:
    """Peak bytes of each call above those at its start; results are dropped at once."""
    if device.type == "cuda":
        return [_cuda_peak(call, device) for call in calls]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        for call in calls:
            with record_function(_MARK):
                call()
    events = list(recorded.profiler.kineto_results.events())
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == _MARK
    )
    return [running_peak(events, start, end) for start, end in spans]


def running_peak(events: Iterable[Any], since_ns: int = 0, until_ns: int | None = None) -> int:
    """Largest running sum of the allocator's events among a profiler's, in a span of time."""
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]"
        and since_ns <= event.start_ns()
        and (until_ns is None or event.start_ns() <= until_ns)
    )
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak


def _cuda_peak(call: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def record_cuda(call: Callable[[], Any], device: torch.device) -> Recording:
    """Peak of ``call`` on a CUDA device, from the caching allocator's own statistics."""
    return Recording(((0, _cuda_peak(call, device)),))
