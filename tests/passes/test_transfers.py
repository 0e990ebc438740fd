"""Values moved at any place: the graphs compute the same, and wrong orders are refused."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxmem
from fxmem import planning
from fxmem.compile import boxed
from fxmem.passes.transfers import Move, is_movable
from fxmem.passes.verify import PassError
from fxmem.planning import rewrite
from fxmem.storages import is_transfer


class Case:
    """A traced step, and its operators in their given order with the turn."""

    def __init__(self) -> None:
        kept = planning.find_schedule

        def find(lowered, budget, options):
            self.lowered = lowered
            return kept(lowered, budget, options)

        traced = planning.trace_joint

        def trace_joint(joint, outputs):
            self.trace = traced(joint, outputs)
            return self.trace

        planning.find_schedule, planning.trace_joint = find, trace_joint
        try:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64))
            fxmem.optimize(model, None, (torch.randn(96, 64),))
        finally:
            planning.find_schedule, planning.trace_joint = kept, traced
        self.order = list(self.lowered.operators)
        storages = self.trace.storages
        self.values = [
            n
            for n in self.trace.joint.graph.nodes
            if n.op == "call_function"
            and len(storages.of[n]) == 1
            and storages.made_by[storages.of[n][0]] in self.order[: self.order.index(None)]
            and n is first(self.trace.joint.graph, storages, storages.of[n][0])
            and is_movable(n.meta["val"])
        ]


def first(graph: fx.Graph, storages, storage: int) -> fx.Node:
    return next(n for n in graph.nodes if storages.of[n] == (storage,))


CASE = Case()


def run(graphs, trace) -> list[torch.Tensor]:
    torch.manual_seed(0)
    names = [n for n in trace.joint.graph.nodes if n.op == "placeholder"]
    made = [torch.randn(n.meta["val"].shape) for n in names]
    primals = made[: len(names) - len(trace.tangents)]
    out = boxed(graphs.forward)(list(primals))
    left, saved = out[: trace.forward_outputs], out[trace.forward_outputs :]
    return [*left, *boxed(graphs.backward)([*saved, *made[len(primals) :]])]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_moves_anywhere_change_no_number(tmp_path_factory, data) -> None:
    directory = str(tmp_path_factory.getbasetemp())
    order: list = list(CASE.order)
    storages = CASE.trace.storages
    for value in data.draw(st.lists(st.sampled_from(CASE.values), unique=True, max_size=4)):
        made = order.index(storages.made_by[storages.of[value][0]])
        at = made
        for kind in ("out", "out_done", "in", "in_done"):
            at = data.draw(st.integers(at + 1, len(order)))
            order.insert(at, Move(kind, value, directory))
    graphs = rewrite(CASE.trace, order, data.draw(st.booleans()))
    plain = run(rewrite(CASE.trace, CASE.order, False), CASE.trace)
    for found, wanted in zip(run(graphs, CASE.trace), plain, strict=True):
        assert found is wanted or torch.equal(found, wanted)


def test_a_moved_value_is_read_from_its_new_copy() -> None:
    value = CASE.values[0]
    turn = CASE.order.index(None)
    moves = [Move(k, value, "/tmp") for k in ("out", "out_done", "in", "in_done")]
    order = [*CASE.order[:turn], *moves, *CASE.order[turn:]]
    graphs = rewrite(CASE.trace, order, True)
    names = [n.target.__name__ for n in graphs.forward.graph.nodes if is_transfer(n)]
    assert names == ["copy_out", "wait_out", "copy_in", "wait_in"]
    assert [n.meta["stall"] for n in graphs.forward.graph.nodes if is_transfer(n)] == [0.0] * 4


def test_a_value_asked_back_too_soon_is_refused() -> None:
    value, turn = CASE.values[0], CASE.order.index(None)
    moves = [Move(k, value, "/tmp") for k in ("out", "in", "in_done")]
    with pytest.raises(PassError, match="before it is known to be there"):
        rewrite(CASE.trace, [*CASE.order[:turn], *moves, *CASE.order[turn:]], True)


def test_what_can_be_moved() -> None:
    base = torch.randn(8, 8)
    assert is_movable(base) and is_movable(base.t())
    assert not is_movable(base[1:]) and not is_movable(base[:, ::2]) and not is_movable(None)
    assert not is_movable(torch.empty(0)) and not is_movable(torch.randn(8).expand(8, 8)[:, 1:])
