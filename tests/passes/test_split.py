"""Forward and backward graph."""

from __future__ import annotations

import random

import torch

from fxmem.costs import Cost
from fxmem.lower import lower
from fxmem.passes.recompute import recompute
from fxmem.passes.split import is_tangent, split
from fxmem.passes.verify import verify_split
from fxmem.trace import trace_joint
from tests.graphs import joint_graph
from tests.schedules import random_schedule


def laid_out(seed: int | None = None):
    joint = joint_graph([(0, 0, 1), (2, 2, 2), (13, 3, 2), (5, 4, 2)], [(1, 0, 3), (3, 2, 2)])
    trace = trace_joint(joint, 1)
    lowered = lower(trace, {n: Cost(1.0, 0) for n in trace.operators}, 0)
    order: list[int] = list(range(lowered.problem.count))
    if seed is not None:
        order = random_schedule(lowered.problem, random.Random(seed), 0.5)
    return recompute(trace.joint, trace.storages, 1, lowered.read(order))


def test_saved_values_are_read_and_unique() -> None:
    for seed in (None, 1, 2, 3):
        step = split(laid_out(seed), 1)
        verify_split(step)
        left = step.forward.graph.output_node().args[0]
        assert len(set(left[1:])) == len(left[1:]) == len(step.saved)
        sources = [n for n in step.backward.graph.nodes if n.op == "placeholder"]
        assert [n.name for n in sources[: len(step.saved)]] == list(step.saved)
        assert all(n.users for n in sources[: len(step.saved)])
        assert [is_tangent(n) for n in sources] == [False] * len(step.saved) + [True]


def test_inputs_of_the_forward_graph_are_the_primals() -> None:
    joint = laid_out()
    step = split(joint, 1)
    wanted = [n.target for n in joint.graph.nodes if n.op == "placeholder" and not is_tangent(n)]
    assert [n.target for n in step.forward.graph.nodes if n.op == "placeholder"] == wanted


def test_draws_stay_while_torch_compile_is_at_work() -> None:
    joint = laid_out()
    draws = [n.name for n in joint.graph.nodes if n.target is torch.ops.aten.native_dropout.default]
    assert draws
    for node in list(joint.graph.nodes):  # now nobody reads them
        if node.name in draws:
            for item in list(node.users):
                item.replace_all_uses_with(node.args[0])
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        step = split(joint, 1)
    both = [*step.forward.graph.nodes, *step.backward.graph.nodes]
    assert [n.name for n in both if n.name in draws] == draws
