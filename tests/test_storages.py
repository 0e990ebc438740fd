"""Which value lies where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.storages import is_item, is_random, is_view, map_storages, operators

aten = torch.ops.aten


def traced(function, *inputs: Tensor):
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return graph, map_storages(graph)


VIEWS = [
    lambda h: h.t(),
    lambda h: h.view(-1),
    lambda h: h[1:3],
    lambda h: h.select(0, 1),
    lambda h: h.expand(2, 4, 6),
    lambda h: h.permute(1, 0),
    lambda h: h.unsqueeze(0).squeeze(0),
    lambda h: h.split(2)[1],
    lambda h: h.unbind(0)[2],
    lambda h: h.chunk(2, 1)[0],
    lambda h: h.as_strided((2, 2), (1, 2)),
    lambda h: aten._unsafe_view.default(h, [24]),
    lambda h: aten._reshape_alias.default(h, [24], [1]),
    lambda h: aten.detach.default(h),
    lambda h: aten.alias.default(h),
    lambda h: h.diagonal(),
]


@pytest.mark.parametrize("view", VIEWS)
def test_views_share_one_storage(view) -> None:
    graph, storages = traced(lambda a: view(torch.tanh(a)), torch.randn(4, 6))
    out = graph.output_node().args[0]
    (tanh,) = operators(graph)
    assert storages.of[out] == storages.of[tanh]
    assert [n.name for n in operators(graph)] == ["tanh"]
    assert all(is_view(n) for n in graph.nodes if n.name not in ("tanh", "output", "a_1"))
    assert storages.size == [96, 96]


def test_several_results_have_a_storage_each() -> None:
    graph, storages = traced(lambda a: torch.max(a, 1), torch.randn(4, 6))
    (node,) = operators(graph)
    items = [n for n in graph.nodes if is_item(n)]
    assert [storages.of[i] for i in items] == [(storages.of[node][0],), (storages.of[node][1],)]
    assert [storages.size[s] for s in storages.made_at(node)] == [16, 32]
    assert not any(map(is_view, items))


def test_in_place_and_out_results_lie_in_their_argument() -> None:
    def step(a: Tensor) -> Tensor:
        h = torch.exp(a)
        g = aten.tanh.out(h, out=h)
        return aten.relu_.default(g)

    graph, storages = traced(step, torch.randn(4, 6))
    made = [n for n in graph.nodes if n.op == "call_function"]
    assert len({storages.of[n] for n in made}) == 1
    # They compute, although they bring nothing into being.
    assert [n.target for n in operators(graph)] == [n.target for n in made]
    assert [storages.made_at(n) != () for n in made] == [True, False, False]


def test_functional_copies_take_the_whole_storage() -> None:
    """Whatever torch's cache of fake results says (the first ``copy`` fills it)."""

    def step(a: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.exp(a)
        small = aten.copy.default(torch.exp(a[0]), a[1])
        return aten.copy.default(h[0], a[1]), small

    graph, storages = traced(step, torch.randn(64, 6))
    large = graph.output_node().args[0][0]
    assert storages.size[storages.of[large][0]] == 64 * 6 * 4
    x = torch.randn(64, 6)
    real = aten.copy.default(torch.exp(x)[0], x[1])
    assert real.untyped_storage().nbytes() == 64 * 6 * 4


def test_reads_are_storages_without_repeats() -> None:
    graph, storages = traced(
        lambda a: torch.stack([h := torch.exp(a), h.t(), torch.sin(a)]), torch.randn(4, 4)
    )
    last = list(operators(graph))[-1]
    found = [storages.made_by[s].name for s in storages.read_by(last)]
    assert len(found) == len(set(found)) == 2 + (len(found) - 2)
    assert "sin" in " ".join(found)


def test_random() -> None:
    def step(a: Tensor) -> Tensor:
        q = a.view(1, 1, 4, 6)
        attention = aten._scaled_dot_product_flash_attention_for_cpu.default
        return torch.rand_like(a) + torch.bernoulli(a) + attention(q, q, q, 0.0)[0][0, 0]

    graph, _ = traced(step, torch.rand(4, 6))
    assert [n.name for n in graph.nodes if is_random(n)] == ["rand_like", "bernoulli"]
