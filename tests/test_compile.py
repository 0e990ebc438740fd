"""Generated code: the graph's numbers, and nothing held longer than it is read."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.allocator import record
from fxmem.compile import boxed, last_uses
from tests.graphs import inputs, joint_graph, plain_run, same_bits

choice = st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))


@settings(max_examples=30, deadline=None, derandomize=True, phases=(Phase.generate, Phase.shrink))
@given(st.lists(choice, min_size=1, max_size=15), st.lists(choice, min_size=1, max_size=8))
def test_same_numbers_as_torchs_interpreter(forward: list, backward: list) -> None:
    joint = joint_graph(forward, backward)
    torch.manual_seed(1)
    wanted = plain_run(joint, inputs())
    torch.manual_seed(1)
    assert same_bits(boxed(joint)(inputs()), wanted)


def test_arguments_are_emptied_and_freed_after_their_last_use() -> None:
    seen: list[bool] = []

    def step(a: Tensor, b: Tensor) -> tuple[Tensor]:
        return (torch.exp(a) * 2 + b,)

    run = boxed(make_fx(step, tracing_mode="fake")(torch.ones(3), torch.ones(3)))
    a = torch.ones(3)
    alive = weakref.ref(a)
    given_list = [a, torch.ones(3)]
    del a
    run(given_list)
    seen.append(alive() is None)
    assert given_list == [] and seen == [True]
    assert run._boxed_call


def test_values_are_freed_after_their_last_use() -> None:
    def step(a: Tensor) -> tuple[Tensor]:
        for _ in range(5):
            a = torch.exp(a)
        return (a,)

    run = boxed(make_fx(step, tracing_mode="fake")(torch.ones(1000)))
    x = torch.ones(1000)
    assert record(lambda: run([x])).peak == 2 * 4000


def test_unused_inputs_and_results_are_freed_at_once() -> None:
    def step(a: Tensor, unused: Tensor) -> tuple[Tensor]:
        torch.ops.aten.rand_like.default(a)
        return (a + torch.max(a, 0)[0],)

    joint = make_fx(step, tracing_mode="fake")(torch.ones(1000, 2), torch.ones(5))
    run = boxed(joint)
    x = torch.ones(1000, 2)
    assert record(lambda: run([x, torch.ones(5)])).peak <= 8000 + 32 + 20


@pytest.mark.parametrize(
    "argument", [float("inf"), float("-inf"), float("nan"), 1e-300, -0.0, True, 3]
)
def test_numbers_survive(argument: float) -> None:
    def step(a: Tensor) -> tuple[Tensor]:
        return (torch.ops.aten.full_like.default(a, argument),)

    run = boxed(make_fx(step, tracing_mode="fake")(torch.ones(2)))
    (found,) = run([torch.ones(2)])
    wanted = torch.full_like(torch.ones(2), argument)
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def test_other_arguments_survive() -> None:
    def step(a: Tensor) -> tuple[Tensor, ...]:
        return (
            a.to(torch.float64),
            a.sum([0], dtype=torch.bfloat16),
            F.gelu(a, approximate="tanh"),
            torch.empty_like(a, memory_format=torch.contiguous_format).fill_(2),
            torch.nn.functional.pad(a, (1, 2), value=float("-inf")),
        )

    joint = make_fx(step, tracing_mode="fake")(torch.randn(3, 4))
    x = torch.randn(3, 4)
    assert same_bits(boxed(joint)([x]), step(x))


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.soft_margin_loss,
     F.binary_cross_entropy, F.binary_cross_entropy_with_logits],
)  # fmt: skip
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_holds_no_more_than_itself(loss, reduction: str) -> None:
    """Some of torch's losses keep a storage of their input's size for one number."""
    a, b = torch.rand(50, 20), torch.rand(50, 20)
    joint = make_fx(lambda a, b: (loss(a, b, reduction=reduction),), tracing_mode="fake")(a, b)
    (found,) = boxed(joint)([a, b])
    assert torch.equal(found, loss(a, b, reduction=reduction))
    assert found.untyped_storage().nbytes() == found.numel() * 4


def test_last_uses() -> None:
    joint = make_fx(lambda a: (torch.exp(a) * torch.exp(a).sin(),), tracing_mode="fake")(
        torch.ones(2)
    )
    nodes = {n.name: n for n in joint.graph.nodes}
    uses = last_uses(joint.graph)
    assert nodes["exp"] in uses[nodes["mul"]] and nodes["sin"] in uses[nodes["mul"]]
    assert uses[nodes["output"]] == [nodes["mul"]]
