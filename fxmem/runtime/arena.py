"""Arenas of a planned step: leased by a forward pass, idle again once its last block is freed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..arena_plan import ArenaPlan
from .native import Native

Boxed = Callable[[list[Any]], Any]

#: Fill freed ranges with not-a-number, so that whoever reads another's bytes is found out.
POISON = False

_everyone: weakref.WeakSet[StepArena] = weakref.WeakSet()


class StepArena:
    """Runs a step's two graphs with their memory in an arena.

    Two forward passes at once have two arenas: what a backward pass may still read is never
    handed out again. A request that does not meet the plan is served by the ordinary allocator.

    Parameters
    ----------
    plan : ArenaPlan
    native : Native
    room : int, optional
        Bytes that others may add between steps before the arena gives memory back: what the
        step leaves of its budget. None: there is no budget.
    """

    def __init__(self, plan: ArenaPlan, native: Native, room: int | None) -> None:
        self.plan, self.served, self.refused = plan, 0, 0
        self._native, self._room = native, room
        self._lock = threading.Lock()
        self._arenas: list[int] = []
        self._saved: int | None = None  # position of an argument of backward in the arena
        sizes = np.array([r.bytes for r in plan.requests], np.int64)
        offsets = np.array([-1 if r.offset is None else r.offset for r in plan.requests], np.int64)
        self._requests = sizes, offsets
        self._forward = sum(r.phase == "forward" for r in plan.requests)
        turn = min((r.start for r in plan.requests if r.phase == "backward"), default=0)
        self._saves = any(r.offset is not None and r.start < turn <= r.end for r in plan.requests)
        _everyone.add(self)

    def forward(self, run: Boxed, args: list[Any]) -> Any:
        """Run the forward graph in an idle arena."""
        if torch._C._len_torch_dispatch_stack() > 0:
            # AOTAutograd looks at the first run through a mode, which allocates beside it.
            self.trim()
            return run(args)
        begun = self._begin_idle(0)
        return self._run(run, args) if begun else run(args)

    def backward(self, run: Boxed, args: list[Any]) -> Any:
        """Run the backward graph in the arena in which its arguments lie, if any does."""
        if self._saves:
            arena = self._find(args)
            begun = arena is not None and bool(self._native.begin(arena, 1, False))
        else:
            begun = self._begin_idle(1)
        return self._run(run, args) if begun else run(args)

    def trim(self) -> None:
        """Give back what no live block lies in."""
        with self._lock:
            for arena in self._arenas:
                self._native.trim(arena)

    @property
    def committed_bytes(self) -> int:
        """Bytes that count as allocated now."""
        return sum(self._native.state(a)[1] for a in self._arenas)

    @property
    def live_blocks(self) -> int:
        """Blocks of steps that are not over."""
        return sum(self._native.state(a)[0] for a in self._arenas)

    def _begin_idle(self, phase: int) -> bool:
        """Start in an arena without live blocks; the memory of other idle ones may be needed."""
        with self._lock:
            begun = any(self._native.begin(a, phase, True) for a in self._arenas)
            begun = begun or self._add(phase)
            if self._room is not None:
                for other in self._arenas:
                    self._native.trim(other)
        return begun

    def _run(self, run: Boxed, args: list[Any]) -> Any:
        try:
            return run(args)
        finally:
            served, refused = self._native.end()
            self.served += served
            self.refused += refused

    def _add(self, phase: int) -> bool:
        plan = self.plan
        arena = self._native.new_arena(
            plan.arena_bytes,
            plan.segment_bytes,
            self._requests,
            self._forward,
            room=self._room,
            poisons=POISON,
        )
        if arena is None:
            return False
        self._arenas.append(arena)
        weakref.finalize(self, self._native.delete_arena, arena)
        return bool(self._native.begin(arena, phase, True))

    def _find(self, args: Sequence[Any]) -> int | None:
        if self._saved is not None and self._saved < len(args):
            arena = self._arena_of(args[self._saved])
            if arena is not None:
                return arena
        for position, value in enumerate(args):
            arena = self._arena_of(value)
            if arena is not None:
                self._saved = position
                return arena
        return None  # forward ran without the arena, or hooks have moved what it saved

    def _arena_of(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return None
        if value.layout is not torch.strided:
            return None
        arena = self._native.arena_of(value.data_ptr())
        return arena if arena in self._arenas else None


def trim_all() -> None:
    """Give back what no live block lies in, as if no step had run yet."""
    for step in list(_everyone):
        step.trim()
