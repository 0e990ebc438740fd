"""Layout of the graph in the planned order."""

from __future__ import annotations

import torch
import torch.fx as fx
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.passes.recompute import recompute
from fxmem.passes.verify import verify_layout
from fxmem.runtime.random import replay, rng_state, turn
from fxmem.storages import operators
from fxmem.trace import StepTrace, trace_joint

aten = torch.ops.aten


def traced(function, count: int = 2, draws: int = 0) -> StepTrace:
    joint = make_fx(function, tracing_mode="fake")(*(torch.randn(4, 6) for _ in range(count)))
    trace = trace_joint(joint, 1)
    assert len(trace.random) == draws
    return trace


def lay_out(trace: StepTrace, *order: str | None, overwritten: tuple = ()) -> fx.GraphModule:
    by_name = {n.name: n for n in trace.joint.graph.nodes}
    sequence = [by_name[name] if name else None for name in order]
    graph = recompute(trace.joint, trace.storages, trace.forward_outputs, sequence, overwritten)
    verify_layout(trace.joint, graph)
    return graph


def step(primals: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.tanh(primals)
    e = torch.exp(h.t())
    return e.sum(0), tangents * h + e.t()


def test_copies_are_marked_and_read_by_what_follows() -> None:
    trace = traced(step)
    graph = lay_out(trace, "tanh", "exp", "sum_1", None, "tanh", "exp", "mul", "add")
    rows = [
        (n.meta["of"], n.meta["recomputed"]) for n in operators(graph.graph) if n.target != turn
    ]
    assert rows == [
        ("tanh", False),
        ("exp", False),
        ("sum_1", False),
        ("tanh", True),
        ("exp", True),
        ("mul", False),
        ("add", False),
    ]
    again = [n for n in graph.graph.nodes if n.meta.get("recomputed")]
    mul = next(n for n in graph.graph.nodes if n.meta.get("of") == "mul")
    assert again[0] in mul.all_input_nodes
    # The view of the old copy is not handed to the new reader.
    (view,) = again[1].all_input_nodes
    assert view.target is aten.t.default and view.all_input_nodes == [again[0]]


def test_a_copy_that_nobody_reads_is_dropped() -> None:
    trace = traced(step)
    graph = lay_out(trace, "tanh", "exp", "sum_1", "tanh", "tanh", None, "mul", "add")
    assert [n.meta["of"] for n in operators(graph.graph)].count("tanh") == 2


def test_draws_are_replayed_from_the_state_of_the_first() -> None:
    def draws(primals: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.rand_like(primals), torch.rand_like(primals)
        return (a * b).sum(0), tangents * a + b

    trace = traced(draws, draws=2)
    first, second = (n.name for n in trace.random)
    graph = lay_out(trace, first, second, "mul", "sum_1", None, first, first, "mul_1", "add")
    names = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    # Only what runs again keeps its state; a replay that nobody reads is dropped.
    assert names.count(rng_state) == 1 and names.count(replay) == 1
    assert names.index(rng_state) < names.index(aten.rand_like.default)
    assert names.count(aten.rand_like.default) == 2


def test_the_first_draw_stays_though_nobody_reads_it() -> None:
    def draws(primals: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        return primals.sum(0), tangents * torch.rand_like(primals)

    trace = traced(draws, draws=1)
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        graph = lay_out(trace, "rand_like", "sum_1", None, "rand_like", "mul")
    names = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert names.count(aten.rand_like.default) == 1 and names.count(replay) == 1


def test_overwritten_inputs_are_read_as_they_were() -> None:
    def updates(primals: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        return primals * 0.9, tangents * torch.exp(primals)

    trace = traced(updates)
    (source, _) = (n for n in trace.joint.graph.nodes if n.op == "placeholder")
    plain = lay_out(trace, "mul", None, "exp", "mul_1")
    assert aten.clone.default not in [n.target for n in plain.graph.nodes]
    graph = lay_out(trace, "mul", None, "exp", "mul_1", overwritten=(source,))
    nodes = list(graph.graph.nodes)
    (copy,) = (n for n in nodes if n.target is aten.clone.default)
    assert nodes.index(copy) < next(i for i, n in enumerate(nodes) if n.target is turn)
    assert [n.target for n in copy.users] == [aten.exp.default]
    # Where only the forward part reads the input there is nothing to keep.
    early = lay_out(trace, "mul", "exp", None, "mul_1", overwritten=(source,))
    assert aten.clone.default not in [n.target for n in early.graph.nodes]
