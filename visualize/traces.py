"""A plan as a trace for other viewers: Chrome's JSON (Perfetto), PyTorch's memory snapshot."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fxmem.errors import FxmemError
from fxmem.measure import MeasuredStep
from fxmem.plan import Plan
from fxmem.simulate import Lifetime

from .areas import areas_of

CHROME, SNAPSHOT = (".json",), (".pickle", ".pkl")
_LANES = {"forward": 1, "backward": 2, "again": 3}
_MICROSECONDS = 1e6


def write_trace(plan: Plan, path: str | Path, measured: MeasuredStep | None = None) -> None:
    """Write what the step runs and holds for a viewer of traces.

    Parameters
    ----------
    plan : Plan
    path : str or Path
        Ends in ``.json`` for the Trace Event Format (ui.perfetto.dev, chrome://tracing), or in
        ``.pickle`` for a snapshot as ``torch.cuda.memory._dump_snapshot`` writes it
        (pytorch.org/memory_viz).
    measured : MeasuredStep, optional
        A counter of its own in the JSON; a snapshot has none.

    Raises
    ------
    FxmemError
        The suffix is not known, or the plan is older than snapshots.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in CHROME:
        row = {"traceEvents": list(_chrome(plan, measured)), "displayTimeUnit": "ms"}
        path.write_text(json.dumps(row))
    elif suffix in SNAPSHOT:
        path.write_bytes(pickle.dumps(snapshot(plan)))
    else:
        raise FxmemError(
            f"traces end in {', '.join(CHROME + SNAPSHOT)}, and {path.name!r} does not; rename it."
        )


def _chrome(plan: Plan, measured: MeasuredStep | None) -> Iterator[dict[str, Any]]:
    """Events of the Trace Event Format: operators in lanes, bytes as counters."""
    yield _meta("process_name", "planned step")
    for lane, number in _LANES.items():
        yield {**_meta("thread_name", lane), "tid": number}
    operators = plan.picture.operators if plan.picture else ()
    modules = {o.name: o.module.replace("/", ".") for o in operators}
    areas = areas_of(plan)
    for i, moment in enumerate(plan.timeline):
        begin = moment.start * _MICROSECONDS
        lane = "again" if moment.recomputed else moment.phase
        yield {
            "name": moment.name,
            "cat": lane,
            "ph": "X",
            "ts": begin,
            "dur": moment.seconds * _MICROSECONDS,
            "pid": 1,
            "tid": _LANES[lane],
            "args": {
                "module": modules.get(moment.name, "").replace("/", "."),
                "held": moment.live_bytes,
            },
        }
        held = {area.label.split(":")[0]: area.held[i] for area in areas}
        yield _counter("memory by category", begin, held)
        yield _counter("memory", begin, {"held": moment.live_bytes})
        if plan.budget_bytes is not None:
            yield _counter("budget", begin, {"bytes": plan.budget_bytes})
    yield from _links(plan)
    for seconds, held_then in measured.timeline if measured else ():
        yield _counter("measured memory", seconds * _MICROSECONDS, {"held": held_then})


def _links(plan: Plan) -> Iterator[dict[str, Any]]:
    """Transfers in a lane for each way of each link, and what the step waits for them."""
    numbers: dict[str, int] = {}
    for t in plan.transfers:
        name = f"{'to' if t.direction == 'out' else 'from'} {t.tier}"
        if name not in numbers:
            numbers[name] = len(_LANES) + len(numbers) + 1
            yield {**_meta("thread_name", name), "tid": numbers[name]}
        yield {
            "name": t.value,
            "cat": "moved",
            "ph": "X",
            "ts": t.start * _MICROSECONDS,
            "dur": (t.end - t.start) * _MICROSECONDS,
            "pid": 1,
            "tid": numbers[name],
            "args": {"bytes": t.bytes, "waited for": t.stall},
        }


def _meta(kind: str, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": 0, "args": {"name": name}}


def _counter(name: str, at: float, values: dict[str, int]) -> dict[str, Any]:
    return {"name": name, "ph": "C", "ts": at, "pid": 1, "tid": 0, "args": values}


def snapshot(plan: Plan) -> dict[str, Any]:
    """The step as ``torch.cuda.memory._snapshot`` would give it (its structure: torch 2.13).

    Raises
    ------
    FxmemError
        The plan was written by a version that kept no lifetimes.
    """
    if plan.picture is None:
        raise FxmemError("this plan holds no lifetimes of values; make it anew with this version.")
    events = _Events(plan)
    held = {kind: size for kind, size in plan.picture.residents.items() if size}
    rest = plan.resident_bytes - sum(held.values())
    for kind, size in {**held, "other residents": rest}.items():
        if size > 0:
            events.allocate(kind, size, "resident", 0)
    born, dying = defaultdict(list), defaultdict(list)
    for life in whole_lives(plan):
        born[life.first].append(life)
        dying[life.last].append(life)
    places: dict[Lifetime, list[int]] = defaultdict(list)
    for i, moment in enumerate(plan.timeline):
        for life in born[i]:
            places[life].append(events.allocate(life.name, life.bytes, life.category, i))
        if moment.held[-1]:
            events.free(events.allocate(moment.name, moment.held[-1], "workspace", i), i)
        for life in dying[i]:
            events.free(places[life].pop(), i)
    return {"segments": events.segments(), "device_traces": [events.rows]}


def whole_lives(plan: Plan) -> list[Lifetime]:
    """Lifetimes in which what lives on from forward to backward is one, not two."""
    lives = plan.picture.lifetimes if plan.picture else ()
    turn = next((i for i, m in enumerate(plan.timeline) if m.phase == "backward"), 0)
    ending = [life for life in lives if life.last == turn - 1]
    going_on = defaultdict(list)
    for life in lives:
        if life.first == turn:
            going_on[life.name, life.bytes].append(life)
    joined, gone = [], set()
    for life in ending:
        if later := going_on[life.name, life.bytes]:
            second = later.pop()
            gone |= {id(life), id(second)}
            joined.append(Lifetime(life.name, life.bytes, second.category, life.first, second.last))
    return [life for life in lives if id(life) not in gone] + joined


class _Events:
    """Allocator events, each block at an address of its own."""

    def __init__(self, plan: Plan) -> None:
        assert plan.picture is not None
        self.plan = plan
        self.modules = {o.name: o.module.replace("/", ".") for o in plan.picture.operators}
        self.rows: list[dict[str, Any]] = []
        self.live: dict[int, dict[str, Any]] = {}
        self.top = 1 << 32

    def allocate(self, name: str, size: int, category: str, position: int) -> int:
        """Note a block; gives its address."""
        address, self.top = self.top, self.top + size
        where = self.modules.get(name) or "step"
        frames = [{"name": f"{name} ({category})", "filename": where, "line": position}]
        row = {"addr": address, "size": size, "stream": 0, "frames": frames}
        self.live[address] = row
        self._note("alloc", row, position)
        return address

    def free(self, address: int, position: int) -> None:
        """Note that a block is given back."""
        row = self.live.pop(address)
        for action in ("free_requested", "free_completed"):
            self._note(action, row, position)

    def _note(self, action: str, row: dict[str, Any], position: int) -> None:
        moment = self.plan.timeline[position] if self.plan.timeline else None
        time = round(moment.start * _MICROSECONDS) if moment else 0
        self.rows.append({"action": action, **row, "time_us": time})

    def segments(self) -> list[dict[str, Any]]:
        """One for each block that is left at the end."""
        return [
            {
                "device": 0,
                "address": row["addr"],
                "total_size": row["size"],
                "allocated_size": row["size"],
                "active_size": row["size"],
                "requested_size": row["size"],
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "frames": row["frames"],
                "blocks": [
                    {
                        "address": row["addr"],
                        "size": row["size"],
                        "requested_size": row["size"],
                        "state": "active_allocated",
                        "frames": row["frames"],
                    }
                ],
            }
            for row in self.live.values()
        ]
