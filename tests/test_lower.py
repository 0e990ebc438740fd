"""The problem that a step becomes."""

from __future__ import annotations

import random

import pytest
import torch
import torch.fx as fx

import fxmem
import fxmem.planning
from fxmem.costs import Cost, MeasuredCosts
from fxmem.lower import Lowered, lower
from fxmem.solvers.remat import check
from fxmem.storages import map_storages
from fxmem.trace import StepTrace
from tests.cases import CASES, make
from tests.schedules import lazy_schedule, random_schedule


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[StepTrace, Lowered]]:
    """Every step that is lowered, with its trace."""
    found: list[tuple[StepTrace, Lowered]] = []

    def keep(trace, costs, resident_bytes, reuse):
        found.append((trace, lower(trace, costs, resident_bytes, reuse)))
        return found[-1][1]

    monkeypatch.setattr(fxmem.planning, "lower", keep)
    return found


def step_of(name: str, lowered: list) -> tuple[StepTrace, Lowered]:
    case = make(name)
    fxmem.optimize(case.module, None)(*case.args, **case.kwargs)
    return lowered[-1]


@pytest.mark.parametrize("name", CASES)
def test_problem(name: str, lowered) -> None:
    trace, found = step_of(name, lowered)
    problem = found.problem
    assert [n for n in found.operators if n is not None] == list(trace.operators)
    assert found.operators[problem.turn] is None and found.operators.count(None) == 1
    assert check(problem, range(problem.count))[0] == problem.base_time
    # The forward outputs are read at the turn, and tangents come into being there.
    outputs = trace.storages_of(trace.outputs[: trace.forward_outputs])
    assert set(problem.reads[problem.turn]) == outputs
    assert set(problem.writes[problem.turn]) == trace.storages_of(trace.tangents)
    for operator, node in enumerate(found.operators):
        if node is not None:
            assert problem.names[operator] == node.name
            assert set(problem.reuse[operator]) <= set(problem.reads[operator])
    # Parameters, inputs and buffers are nobody's output.
    for storage, node in enumerate(trace.storages.made_by):
        resident = node.op in ("placeholder", "get_attr") and node not in trace.tangents
        assert (problem.writer[storage] < 0) == resident
    gradients = trace.storages_of(trace.outputs[trace.forward_outputs :])
    assert gradients <= problem.keep
    assert problem.turn in problem.ordered
    assert list(problem.ordered) == sorted(problem.ordered)


@pytest.mark.parametrize("name", ["transformer", "convnet", "noise"])
def test_schedules_made_for_tests_are_valid(name: str, lowered) -> None:
    problem = step_of(name, lowered)[1].problem
    for seed in range(20):
        check(problem, random_schedule(problem, random.Random(seed), 0.5))
        check(problem, lazy_schedule(problem, random.Random(seed)))


def test_draws_keep_their_order_and_may_run_again(lowered) -> None:
    trace, found = step_of("transformer", lowered)
    ordered = [found.operators[v] for v in found.problem.ordered]
    assert [n for n in ordered if n is not None] == list(trace.random)
    # All but the loss, which the caller holds from the turn on, may run again.
    assert [found.problem.names[v] for v in found.problem.once] == ["nll_loss_forward"]
    assert found.aside_bytes >= 5056 * len(trace.random)


def test_room_for_copies_of_what_is_overwritten(lowered) -> None:
    _, found = step_of("convnet", lowered)
    assert found.aside_bytes == 2 * (8 + 2 * 8 * 4)


def test_loss_outside_needs_room(lowered) -> None:
    _, inside = step_of("mlp", lowered)
    assert inside.problem.workspace[inside.problem.turn] == 0
    _, outside = step_of("outside", lowered)
    assert outside.problem.workspace[outside.problem.turn] == 2 * 48 * 64 * 4


def test_without_reuse_nothing_may_be_overwritten(lowered) -> None:
    trace, found = step_of("mlp", lowered)
    assert any(found.problem.reuse)
    free = {n: Cost(0.0, 0) for n in trace.operators}
    assert not any(lower(trace, free, 0, reuse=False).problem.reuse)


def test_costs_and_residents_are_carried_over(lowered) -> None:
    trace, _ = step_of("mlp", lowered)
    costs = {n: Cost(i * 1e-9, 10 * i) for i, n in enumerate(trace.operators)}
    problem = lower(trace, costs, 777).problem
    times = [problem.time[v] for v in range(problem.count) if v != problem.turn]
    assert times == list(range(len(trace.operators)))
    spaces = [problem.workspace[v] for v in range(problem.count) if v != problem.turn]
    assert spaces == [10 * i for i in range(len(trace.operators))]
    assert (problem.time[problem.turn], problem.resident_bytes) == (0, 777)


def effect(graph: fx.Graph) -> fx.Node:
    return next(n for n in graph.nodes if n.target is torch.ops.aten.copy_.default)


def test_what_the_graph_itself_overwrites_runs_once(lowered) -> None:
    trace, _ = step_of("outside", lowered)
    graph = trace.joint.graph
    tanh = next(n for n in graph.nodes if n.target is torch.ops.aten.tanh.default)
    with graph.inserting_after(tanh):
        write = graph.call_function(torch.ops.aten.relu_.default, (tanh,))
    write.meta["val"] = tanh.meta["val"]
    changed = StepTrace(trace.joint, map_storages(graph), trace.forward_outputs, 0)
    found = lower(changed, {n: Cost(0.0, 0) for n in changed.operators}, 0)
    once = {found.operators[v].name for v in found.problem.once}
    readers = {u.name for u in tanh.users if u in changed.operators}
    assert write.name in once and readers <= once
    ordered = {found.operators[v].name for v in found.problem.ordered if v != found.problem.turn}
    assert ordered == {write.name, *readers}


def test_collectives_run_once_in_their_order(lowered) -> None:
    trace, _ = step_of("outside", lowered)
    graph = trace.joint.graph
    found = [n for n in graph.nodes if n.target is torch.ops.aten.tanh.default][:2]
    talking = []
    for tanh in found:
        users = list(tanh.users)
        for target, rest in (("all_reduce", ("sum", "group")), ("wait_tensor", ())):
            source = talking[-1] if rest == () else tanh
            with graph.inserting_after(source):
                operator = getattr(torch.ops._c10d_functional, target).default
                talking.append(graph.call_function(operator, (source, *rest)))
            talking[-1].meta["val"] = torch.empty_like(tanh.meta["val"])
        for user in users:
            user.replace_input_with(tanh, talking[-1])
    changed = StepTrace(trace.joint, map_storages(graph), trace.forward_outputs, 0)
    costs = MeasuredCosts(torch.device("cpu"))(list(changed.operators))  # runs none of them
    assert all(costs[n] == Cost(0.0, 0) for n in talking)
    problem = lower(changed, costs, 0).problem
    names = [n.name for n in talking]
    assert [problem.names[v] for v in problem.ordered if v != problem.turn] == names
    assert set(names) <= {problem.names[v] for v in problem.once}


@pytest.mark.parametrize("name", ["dict", "tuple", "passes through", "convnet"])
def test_what_the_caller_holds_is_made_once(name: str, lowered) -> None:
    trace, found = step_of(name, lowered)
    returned = trace.outputs[trace.written_back : trace.forward_outputs]
    makers = {
        node.name
        for s in trace.storages_of(returned)
        if (node := trace.storages.made_by[s]).op == "call_function"
    }
    # New values of buffers are not held: the operators that make them may run again.
    assert {found.problem.names[v] for v in found.problem.once} == makers
