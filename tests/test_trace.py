"""The traced step: what each value is to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxmem
import fxmem.planning
from fxmem.errors import TraceError
from fxmem.storages import operators
from fxmem.trace import StepTrace, trace_joint, written_inputs
from tests.cases import CASES, make
from tests.graphs import joint_graph


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[StepTrace]:
    """Every step that is traced, as it is traced."""
    found: list[StepTrace] = []

    def keep(joint, forward_outputs):
        found.append(trace_joint(joint, forward_outputs))
        return found[-1]

    monkeypatch.setattr(fxmem.planning, "trace_joint", keep)
    return found


def trace_of(name: str, traces: list[StepTrace]) -> StepTrace:
    case = make(name)
    fxmem.optimize(case.module, None)(*case.args, **case.kwargs)
    (trace,) = traces
    return trace


def names(nodes) -> list[str]:
    return [n.name for n in nodes]


@pytest.mark.parametrize("name", CASES)
def test_every_module_is_one_graph(name: str, traces: list[StepTrace]) -> None:
    trace = trace_of(name, traces)
    assert trace.device() == torch.device("cpu")
    assert len(trace.outputs) > trace.forward_outputs > trace.written_back >= 0
    assert len(trace.overwritten) == trace.written_back
    assert set(trace.random) <= set(trace.operators)
    assert list(trace.operators) == list(operators(trace.joint.graph))
    # Every node's value is known, and every storage has one maker.
    for node in trace.joint.graph.nodes:
        assert node in trace.storages.of
    assert len(trace.storages.size) == len(trace.storages.made_by)


def test_tied_weights_are_one_input(traces: list[StepTrace]) -> None:
    trace = trace_of("no dropout", traces)
    shapes = [tuple(n.meta["val"].shape) for n in trace.joint.graph.nodes if n.op == "placeholder"]
    assert shapes.count((50, 32)) == 1


def test_frozen_parameters_get_no_gradient(traces: list[StepTrace]) -> None:
    trace = trace_of("frozen", traces)
    gradients = trace.outputs[trace.forward_outputs :]
    # Of two inputs, a frozen layer's weight and bias, and a frozen bias.
    assert gradients.count(None) == 5
    assert len(gradients) - gradients.count(None) == 5


def test_written_buffers(traces: list[StepTrace]) -> None:
    trace = trace_of("convnet", traces)
    assert trace.written_back == 6
    assert [tuple(n.meta["val"].shape) for n in trace.overwritten] == [(), (8,), (8,)] * 2 or [
        tuple(n.meta["val"].shape) for n in trace.overwritten
    ] == [(8,), (8,), ()] * 2
    written = trace.outputs[: trace.written_back]
    for new, old in zip(written, trace.overwritten, strict=True):
        assert new.meta["val"].shape == old.meta["val"].shape


def test_written_arguments(traces: list[StepTrace]) -> None:
    trace = trace_of("writes input", traces)
    assert [n.target for n in trace.overwritten] == ["primals_2"]


def test_no_written_inputs_without_descriptions() -> None:
    assert written_inputs(joint_graph([(0, 0, 1)], [(0, 0, 0)])) == ()


@pytest.mark.parametrize(("name", "count"), [("mlp", 0), ("transformer", 6), ("noise", 6)])
def test_draws(name: str, count: int, traces: list[StepTrace]) -> None:
    assert len(trace_of(name, traces).random) == count


def test_tangents(traces: list[StepTrace]) -> None:
    trace = trace_of("tuple", traces)
    assert [tuple(t.meta["val"].shape) for t in trace.tangents] == [(), (48, 16), (48, 64)]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(3))


def test_several_devices() -> None:
    joint = joint_graph([(0, 0, 1)], [(0, 0, 0)])
    node = next(n for n in joint.graph.nodes if n.op == "placeholder")
    node.meta["val"] = torch.empty(3, device="meta")
    with pytest.raises(TraceError, match=r"several devices \(cpu, meta\)"):
        trace_joint(joint, 1).device()
