"""After `agree` every value of a graph lies in memory as the real one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx as fx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import fxmem
from fxmem.costs import Cost, MeasuredCosts, RecordedCosts
from fxmem.costs.layouts import Layout
from fxmem.passes.agree import agree

aten = torch.ops.aten
TABLE = MeasuredCosts(torch.device("cpu"), cache=False)

# Binary operators of values and gradients of one shape. Of the first four torch's rules for fake
# tensors tell wrong strides, where arguments are transposed (2.13).
OPERATORS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: aten.hardswish_backward.default(a, b),
    lambda a, b: aten.hardsigmoid_backward.default(a, b),
    lambda a, b: aten.logit_backward.default(a, b, 1e-3),
    lambda a, b: aten.native_dropout_backward.default(a, b > 0, 2.0),
    lambda a, b: a + b,
    lambda a, b: a.mT.contiguous().mT * b,
    lambda a, b: torch.tanh(a).mT.reshape(b.shape),
    lambda a, b: torch.cat([a, b], 1)[:, ::2],
    lambda a, b: a.permute(2, 1, 0).clone(),
    lambda a, b: torch.stack([a, b]).sum(0),
]


def traced(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


class Real(fx.Interpreter):
    """Runs a graph and notes where its values lie otherwise than told."""

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        if n.op == "call_function":
            values = made if isinstance(made, (tuple, list)) else [made]
            told = n.meta["val"]
            for new, old in zip(values, told if isinstance(told, tuple) else [told], strict=True):
                if isinstance(new, Tensor) and Layout.of(new) != Layout.of(old):
                    self.unlike.append(n)
        return made

    def unlike_of(self, *inputs: Tensor) -> list[fx.Node]:
        self.unlike: list[fx.Node] = []
        self.run(*inputs)
        return self.unlike


CHOICE = st.tuples(st.integers(0, len(OPERATORS) - 1), st.integers(0, 99), st.integers(0, 99))


@settings(max_examples=60)
@given(st.lists(CHOICE, min_size=1, max_size=8), st.booleans(), st.sampled_from([1, 4]))
def test_every_value_lies_as_the_real_one(
    choices: list[tuple[int, int, int]], turned: bool, outer: int
) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        values = [x, y.permute(2, 1, 0) if turned else y]
        for operator, left, right in choices:
            a, b = values[left % len(values)], values[right % len(values)]
            values.append(OPERATORS[operator](a, b))
        return values[-1]

    inputs = torch.rand(outer, 4, outer), torch.rand(outer, 4, outer)
    graph = traced(function, *inputs)
    names = [n.name for n in graph.graph.nodes]
    corrected = agree(graph, TABLE)
    assert Real(corrected).unlike_of(*inputs) == []
    restored = corrected.graph.find_nodes(op="call_function", target=aten.as_strided.default)
    assert [n.name for n in corrected.graph.nodes if n not in restored] == names
    assert torch.equal(corrected(*inputs), graph(*inputs))
    if not Real(graph).unlike_of(*inputs):
        assert corrected is graph


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(aten.hardswish_backward.default(x.mT, y)).mT.contiguous()


def test_what_follows_from_a_correction() -> None:
    inputs = torch.rand(4, 6), torch.rand(6, 4)
    graph = traced(chain, *inputs)
    assert len(Real(graph).unlike_of(*inputs)) > 1
    recorded = RecordedCosts(TABLE)
    corrected = agree(graph, recorded)
    assert Real(corrected).unlike_of(*inputs) == []
    assert all(n.meta["val"].fake_mode for n in corrected.graph.nodes if n.op == "call_function")
    # Another process, told the costs, makes the same graph.
    again = agree(graph, RecordedCosts(None, recorded.known))
    assert layouts(again) == layouts(corrected) != layouts(graph)


def layouts(graph: fx.GraphModule) -> list[Layout | None]:
    return [Layout.of(n.meta.get("val")) for n in graph.graph.nodes]


def test_strides_of_one_element_are_restored() -> None:
    """Fake views of a batch of one look channels-last to group norm; real ones do not."""

    def function(x: Tensor) -> Any:
        image = x.transpose(-1, -2).view(1, 8, 4, 4) / 2
        return aten.native_group_norm.default(image, None, None, 1, 8, 16, 4, 1e-5)[0]

    inputs = (torch.rand(1, 16, 8),)
    graph = traced(function, *inputs)
    if not torch.__version__.startswith("2.14"):  # it takes any strides there
        with pytest.raises(RuntimeError):
            graph(*inputs)
    corrected = agree(graph, TABLE)
    assert Real(corrected).unlike_of(*inputs) == []
    image = inputs[0].mT.reshape(1, 8, 4, 4) / 2
    torch.testing.assert_close(corrected(*inputs), nn.functional.group_norm(image, 4))


def test_dtypes() -> None:
    """The fake statistics of a bfloat16 batch are bfloat16; real ones are float32."""

    def function(x: Tensor) -> Any:
        weight = torch.ones(8)
        return aten._native_batch_norm_legit.no_stats(x, weight, weight, True, 0.1, 1e-5)

    inputs = (torch.rand(4, 8).bfloat16(),)
    graph = traced(function, *inputs)
    assert Real(graph).unlike_of(*inputs)
    assert Real(agree(graph, TABLE)).unlike_of(*inputs) == []


def test_costs_that_tell_nothing_change_nothing() -> None:
    graph = traced(chain, torch.rand(4, 6), torch.rand(6, 4))
    assert agree(graph, lambda nodes: {n: Cost(1.0, 0) for n in nodes}) is graph


@pytest.mark.parametrize("missing", [0, 1])
def test_results_that_are_not_there(missing: int) -> None:
    """A gradient that nobody asked for is None in one of the two."""
    graph = traced(lambda x: torch.var_mean(x, 0), torch.rand(4, 6))
    (node,) = (n for n in graph.graph.nodes if n.target is aten.var_mean.correction)
    told = [Layout("float32", (6,), (2,)), Layout("float32", (6,), (3,))]
    results = tuple(None if i == missing else layout for i, layout in enumerate(told))
    corrected = agree(graph, lambda nodes: {n: Cost(1.0, 0, results) for n in nodes})
    (node,) = (n for n in corrected.graph.nodes if n.target is aten.var_mean.correction)
    found = [v.stride() for v in node.meta["val"]]
    assert found == [(1,) if i == missing else layout.strides for i, layout in enumerate(told)]


def test_layouts_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(chain, torch.rand(4, 6), torch.rand(6, 4))
    first = agree(graph, MeasuredCosts(torch.device("cpu"), tmp_path))
    monkeypatch.setattr("fxmem.costs.measured.measure_call", None)
    again = agree(graph, MeasuredCosts(torch.device("cpu"), tmp_path))
    assert layouts(first) == layouts(again) != layouts(graph)


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = torch.tanh(self.linear(x))
            return torch.tanh(self.norm(hidden)).float().square().mean()


def test_the_least_budget_named_is_enough() -> None:
    x = torch.randn(64, 16)
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        fxmem.optimize(Statistics(), 1, (x,), time_limit=0.5)
    least = caught.value.minimum_bytes
    assert least is not None
    torch._dynamo.reset()
    fitted = fxmem.optimize(Statistics(), least, (x,), time_limit=0.5)
    fitted(x).backward()
    plan, measured = fitted.report().rows[-1]
    assert measured == plan.peak_bytes <= least


class OneImage(nn.Module):
    """Attention between convolutions, as diffusers have it, of a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(8, 8), nn.GroupNorm(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mix(x.flatten(2).mT)
        return self.norm(hidden.mT.reshape(x.shape) / 2).square().mean()


@pytest.mark.parametrize("share", [None, 0.9])
def test_a_batch_of_one(share: float | None) -> None:
    """Torch's own capture of it fails in group norm (2.13)."""
    torch.manual_seed(0)
    x, module = torch.rand(1, 8, 4, 4), OneImage()
    module(x).backward()
    wanted = [p.grad for p in module.parameters()]
    module.zero_grad()
    try:
        fitted = fxmem.optimize(module, share, (x,))
    except fxmem.InfeasibleBudget as error:  # 2.14 needs more for its kernel
        fitted = fxmem.optimize(module, error.minimum_bytes, (x,))
    loss = fitted(x)
    loss.backward()
    torch.testing.assert_close(loss, module(x))
    torch.testing.assert_close([p.grad for p in module.parameters()], wanted)
    plan, measured = fitted.report().rows[-1]
    assert measured == plan.peak_bytes
