"""What the allocator itself reports: exact bytes, never resident set size."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType  # as torch.profiler's own memory timeline reads
from torch.profiler import ProfilerActivity, profile, record_function

from .errors import ProfilerBusy
from .runtime.arena import trim_all
from .runtime.devices import stage_in

# Kineto, read at its first recording: it would print two lines to stderr for each.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

_CPU = [ProfilerActivity.CPU]
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
    """Run ``call`` once and sum the CPU allocator's events while it runs.

    Idle arenas give their memory back first, so that what the call needs of it counts.
    """
    gc.collect()
    trim_all()
    with _recording() as recorded:
        call()
    events = _events(recorded)
    start = min((e.start_time_ns for e in events if _is_memory(e)), default=0)
    return Recording(tuple((moment - start, live) for moment, live in running_bytes(events)))


def peak_of_calls(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[int]:
    """Peak bytes of each call above those at its start; results are dropped at once."""
    if device.type == "cuda":
        return [_cuda_peak(call, device) for call in calls]
    with _recording() as recorded:
        for call in calls:
            with record_function(_MARK):
                call()
    events = _events(recorded)
    spans = sorted((e.start_time_ns, e.end_time_ns) for e in events if e.name == _MARK)
    return [
        max((live for _, live in running_bytes(events, start, end)), default=0)
        for start, end in spans
    ]


def running_bytes(
    events: Iterable[Any], since_ns: int = 0, until_ns: int | None = None
) -> list[tuple[int, int]]:
    """Time and running sum of the allocator's events of a span of time.

    A block that was there before the span counts as held throughout. The profiler's own size of
    it, when it is freed, may be that of another block which once had the same address.
    """
    changes = sorted(
        (e.start_time_ns, e.extra_fields.alloc_size, e.extra_fields.ptr)
        for e in events
        if _is_memory(e)
        and since_ns <= e.start_time_ns
        and (until_ns is None or e.start_time_ns <= until_ns)
    )
    size_at: dict[int, int] = {}
    live, after = 0, []
    for moment, change, address in changes:
        if change > 0:
            size_at[address] = change
        live += change if change > 0 else -size_at.pop(address, 0)
        after.append((moment, live))
    return after


def device_peaks(call: Callable[[], Any], devices: int) -> tuple[int, ...]:
    """Peak bytes of one call on each of several logical devices, above those at its start.

    They share one memory. A block belongs to the device of the stage that was at work when it
    was asked for (`runtime.devices` leaves marks in the recording), from then until it is freed;
    before the first mark, to the first device.

    Parameters
    ----------
    call : callable
    devices : int
        How many there are.
    """
    gc.collect()
    trim_all()
    with _recording() as recorded:
        call()
    happened: list[tuple[int, int, int, int]] = []
    for event in _events(recorded):
        stage = stage_in(event.name)
        if _is_memory(event):
            fields = event.extra_fields
            happened.append((event.start_time_ns, 1, fields.alloc_size, fields.ptr))
        elif stage is not None:
            happened.append((event.start_time_ns, 0, stage, 0))
    at_work = 0
    live, most = [0] * devices, [0] * devices
    held: dict[int, tuple[int, int]] = {}
    for _, is_memory, value, address in sorted(happened):
        if not is_memory:
            at_work = value
        elif value > 0:
            held[address] = (at_work, value)
            live[at_work] += value
            most[at_work] = max(most[at_work], live[at_work])
        elif address in held:
            device, size = held.pop(address)
            live[device] -= size
    return tuple(most)


def is_profiled() -> bool:
    """Does a profiler run on this thread? A second one would take all that it has recorded."""
    return torch.autograd._profiler_enabled()


@contextmanager
def _recording() -> Iterator[profile]:
    if is_profiled():
        raise ProfilerBusy(
            "bytes cannot be measured while another profiler runs: its recording would be lost. "
            "What to do: start it after the first step, or measure outside it."
        )
    with profile(activities=_CPU, profile_memory=True, acc_events=True) as recorded:
        yield recorded


def _events(recorded: Any) -> list[Any]:
    """All events of a recording; only these carry the addresses of the allocator's."""
    found: list[Any] = []
    pending = list(recorded.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        found.append(event)
    return found


def _is_memory(event: Any) -> bool:
    return event.tag == _EventType.Allocation


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
