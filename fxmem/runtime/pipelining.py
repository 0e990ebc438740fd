"""torch.distributed.pipelining's runtime schedules with our own stages; private names live here.

Used beyond the public surface (read in 2.13, and as `shared/notes/torch.md` says stable since
2.11): the four computation types, a schedule's ``fwd_recv_ops``, ``bwd_recv_ops``,
``pipeline_order_with_comms``, ``_initialize_stages``, and the methods of a stage overridden here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
)

from .messages import as_bytes, laid_out
from .stage import StageRun, Tensors

#: Name -> (schedule, stages on a rank, does backward run in two parts).
SCHEDULES: dict[str, tuple[Any, int, bool]] = {
    "gpipe": (ScheduleLoopedBFS, 1, False),
    "1f1b": (ScheduleInterleaved1F1B, 1, False),
    "interleaved": (ScheduleInterleaved1F1B, 2, False),
    "zero-bubble": (ScheduleInterleavedZeroBubble, 1, True),
    "zbv": (ScheduleZBVZeroBubble, 2, True),
}

Action = tuple[str, int, int]
_KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def ranks_of(schedule: str, ranks: int) -> tuple[int, ...]:
    """The rank of each stage."""
    count = SCHEDULES[schedule][1] * ranks
    if schedule == "zbv":
        return tuple(min(s, count - 1 - s) for s in range(count))
    return tuple(s % ranks for s in range(count))


def actions(schedule: str, ranks: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """What each rank does, in order: (kind, stage, microbatch); needs no process group.

    Kinds are torch's: "F", "B", "I" and "W", and the communications "RECV_F", "SEND_B", ...
    """
    kind, each, _ = SCHEDULES[schedule]
    stages = [
        SimpleNamespace(
            group_size=ranks, group_rank=0, num_stages=each * ranks, stage_index=s, submod=None
        )
        for s, r in enumerate(ranks_of(schedule, ranks))
        if r == 0
    ]
    order = kind(stages, microbatches).pipeline_order_with_comms
    return tuple(
        tuple(
            (
                _KINDS.get(a.computation_type.name, a.computation_type.name),
                a.stage_index,
                a.microbatch_index,
            )
            for a in order[r]
        )
        for r in range(ranks)
    )


def arrivals(
    orders: Sequence[Sequence[Action]], ranks: Sequence[int], rank: int
) -> dict[Action, tuple[Action, ...]]:
    """Which of a rank's sends have arrived for certain when one of its computations starts.

    Gloo tells of no send whether it is over, and waiting for it too soon could wait for ever. A
    message has arrived once the other rank has sent one later than the computation that read it.

    Returns
    -------
    dict
        Computation -> sends ("SEND_F" or "SEND_B", stage, microbatch) that are over.
    """
    place = [{a: i for i, a in enumerate(order)} for order in orders]
    backward = {a[1:]: a for order in orders for a in order if a[0] in ("B", "I")}
    proofs: dict[Action, list[Action]] = {}
    for i, (kind, s, m) in enumerate(orders[rank]):
        if kind not in ("SEND_F", "SEND_B"):
            continue
        reader = ("F", s + 1, m) if kind == "SEND_F" else backward[s - 1, m]
        other = ranks[reader[1]]
        read_at = place[other][reader]
        for later in orders[rank][i + 1 :]:
            step = {"F": -1, "B": 1, "I": 1}.get(later[0], 0)
            answer = ("SEND_F" if step < 0 else "SEND_B", later[1] + step, later[2])
            if step and place[other].get(answer, -1) > read_at:
                proofs.setdefault(later, []).append((kind, s, m))
                break
    return {a: tuple(sends) for a, sends in proofs.items()}


class _Stage(PipelineStage):
    """A stage that receives into memory of its own time, and lets go of what has been sent."""

    def __init__(self, run: StageRun, index: int, count: int, device: torch.device) -> None:
        super().__init__(torch.nn.Module(), index, count, device)
        self.run = run
        self.arriving: dict[int, Tensors] = {}
        self.arriving_gradients: dict[int, Tensors] = {}
        self.leaving: dict[int, Tensors] = {}
        self.leaving_gradients: dict[int, Tensors] = {}
        self.sends: dict[Action, list[tuple[Any, torch.Tensor]]] = {}

    def clear_runtime_states(self) -> None:
        pass

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        pass

    def get_fwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        if self.is_first:
            return []
        self.arriving[chunk] = self._room(self.run.stage.received)
        return self._receive(self.arriving[chunk], self.stage_index - 1)

    def get_bwd_recv_ops(self, chunk: int) -> list[dist.P2POp]:
        if self.is_last:
            return []
        self.arriving_gradients[chunk] = self._room(self.run.stage.gradients_received)
        return self._receive(self.arriving_gradients[chunk], self.stage_index + 1)

    def get_fwd_send_ops(self, chunk: int) -> list[dist.P2POp]:
        values = self.leaving.pop(chunk)
        self._send(("SEND_F", self.stage_index, chunk), values, self.stage_index + 1)
        return []

    def get_bwd_send_ops(self, chunk: int) -> list[dist.P2POp]:
        values = self.leaving_gradients.pop(chunk)
        self._send(("SEND_B", self.stage_index, chunk), values, self.stage_index - 1)
        return []

    def let_go(self, send: Action) -> None:
        """Wait for what was sent, and free it."""
        for work, _ in self.sends.pop(send, ()):
            work.wait()

    def finish(self) -> None:
        """Wait until all has arrived."""
        for send in list(self.sends):
            self.let_go(send)

    def _room(self, names: Sequence[str]) -> Tensors:
        fakes = self.run.stage.values
        return {
            n: torch.empty_strided(
                fakes[n].shape, fakes[n].stride(), dtype=fakes[n].dtype, device=self.device
            )
            for n in names
        }

    def _peer(self, stage: int) -> int:
        rank = self.stage_index_to_group_rank[stage]
        group = self.group or dist.group.WORLD
        assert group is not None
        return dist.get_global_rank(group, rank)

    def _receive(self, room: Tensors, stage: int) -> list[dist.P2POp]:
        peer = self._peer(stage)
        return [
            dist.P2POp(dist.irecv, as_bytes(t), peer, self.group)
            for t in room.values()
            if t.numel()
        ]

    def _send(self, send: Action, values: Tensors, stage: int) -> None:
        fakes = self.run.stage.values
        flat = [as_bytes(laid_out(t, fakes[n])) for n, t in values.items() if t.numel()]
        peer = self._peer(stage)
        self.sends[send] = [(dist.isend(t, peer, self.group), t) for t in flat]


class Engine:
    """The stages of this rank under one schedule.

    Parameters
    ----------
    runs : dict of int to StageRun
        By number of the stage.
    schedule : str
    microbatches : int
    device : torch.device
    """

    def __init__(
        self, runs: dict[int, StageRun], schedule: str, microbatches: int, device: torch.device
    ) -> None:
        kind, each, _ = SCHEDULES[schedule]
        count = each * dist.get_world_size()
        self.stages = {s: _Stage(run, s, count, device) for s, run in runs.items()}
        self.inputs: list[tuple[Any, ...]] = []
        self.losses: list[torch.Tensor] = []
        self.doing: Action | None = None
        self.schedule = kind(
            list(self.stages.values()), microbatches, backward_requires_autograd=False
        )
        world = dist.get_world_size()
        orders, ranks = actions(schedule, world, microbatches), ranks_of(schedule, world)
        self.arrived = arrivals(orders, ranks, dist.get_rank())
        # Shapes are known from the trace: nothing is to be inferred by running.
        self.schedule._initialize_stages = lambda *args, **kwargs: None
        handlers = {
            FORWARD: self._forward,
            FULL_BACKWARD: self._backward,
            BACKWARD_INPUT: self._backward_inputs,
            BACKWARD_WEIGHT: self._backward_weights,
        }
        for computation, handler in handlers.items():
            self.schedule.register_custom_function(computation, handler)

    def step(self, inputs: list[tuple[Any, ...]]) -> list[torch.Tensor]:
        """Run one step; losses of the microbatches, at the last stage."""
        self.inputs, self.losses = inputs, []
        try:
            with torch.no_grad():
                self.schedule.step(return_outputs=False)
            for stage in self.stages.values():
                stage.finish()
        finally:
            self.inputs = []
            for stage in self.stages.values():
                stage.run.clear()
                stage.sends.clear()
        return self.losses

    def _forward(self, action: Any, _context: Any) -> None:
        stage, chunk = self._start(action, "F")
        for work in self.schedule.fwd_recv_ops.pop((stage.stage_index, chunk), ()):
            work.wait()
        received = stage.arriving.pop(chunk, {})
        self._let_go()
        sent, loss = stage.run.forward(chunk, received, self.inputs[chunk])
        if loss is not None:
            self.losses.append(loss)
        self._pass_on(stage.stage_index + 1, chunk, sent, "arriving", stage.leaving)

    def _backward(self, action: Any, _context: Any) -> None:
        stage, chunk = self._start(action, "B")
        sent = stage.run.backward(chunk, self._gradients(stage, chunk))
        place = stage.leaving_gradients
        self._pass_on(stage.stage_index - 1, chunk, sent, "arriving_gradients", place)

    def _backward_inputs(self, action: Any, _context: Any) -> None:
        stage, chunk = self._start(action, "I")
        sent = stage.run.backward_inputs(chunk, self._gradients(stage, chunk))
        place = stage.leaving_gradients
        self._pass_on(stage.stage_index - 1, chunk, sent, "arriving_gradients", place)

    def _backward_weights(self, action: Any, _context: Any) -> None:
        stage, chunk = self._start(action, "W")
        stage.run.backward_weights(chunk)

    def _start(self, action: Any, kind: str) -> tuple[_Stage, int]:
        stage = self.stages[action.stage_index]
        self.doing = (kind, action.stage_index, action.microbatch_index)
        return stage, action.microbatch_index

    def _gradients(self, stage: _Stage, chunk: int) -> Tensors:
        for work in self.schedule.bwd_recv_ops.pop((stage.stage_index, chunk), ()):
            work.wait()
        self._let_go()
        return stage.arriving_gradients.pop(chunk, {})

    def _let_go(self) -> None:
        """Free what has arrived elsewhere for certain now that this action has its inputs."""
        assert self.doing is not None
        for send in self.arrived.get(self.doing, ()):
            self.stages[send[1]].let_go(send)

    def _pass_on(
        self, to: int, chunk: int, sent: Tensors, arriving: str, leaving: dict[int, Tensors]
    ) -> None:
        """To a stage of this rank directly, to another rank when the schedule says so."""
        if to in self.stages:
            getattr(self.stages[to], arriving)[chunk] = sent
        elif 0 <= to < next(iter(self.stages.values())).num_stages:
            leaving[chunk] = sent
