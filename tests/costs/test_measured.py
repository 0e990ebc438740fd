"""Each distinct call is run once, and takes what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.allocator import record
from fxmem.costs import Cost, MeasuredCosts
from fxmem.costs.measured import materialise, measure_call, output_bytes
from fxmem.storages import operators

CPU = torch.device("cpu")
aten = torch.ops.aten


def nodes(function, *inputs) -> list:
    return list(operators(make_fx(function, tracing_mode="fake")(*inputs).graph))


def table(tmp_path: Path, **options) -> MeasuredCosts:
    return MeasuredCosts(CPU, directory=tmp_path, **options)


def test_each_distinct_call_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = measure_call
    monkeypatch.setattr(
        "fxmem.costs.measured.measure_call", lambda n, d: calls.append(n.name) or real(n, d)
    )
    found = nodes(lambda a: torch.exp(torch.exp(a)) + a, torch.ones(50))
    told: list[tuple[int, int]] = []
    costs = table(tmp_path, progress=lambda done, total: told.append((done, total)))
    first = costs(found)
    assert len(calls) == 2 and told == [(1, 2), (2, 2)]
    assert first[found[0]] == first[found[1]] != Cost(0.0, 0)
    assert costs(found) == first and len(calls) == 2
    assert table(tmp_path)(found) == first and len(calls) == 2  # from the disk
    MeasuredCosts(CPU, cache=False)(found)
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("function", "workspace"),
    [
        (lambda a: torch.exp(a), 0),
        (lambda a: torch.mm(a, a), 0),
        (lambda a: aten.native_dropout.default(a, 0.5, True), None),
        (lambda a: aten.mse_loss.default(a, a), None),
    ],
)
def test_workspace_is_what_a_call_takes_beyond_its_outputs(function, workspace) -> None:
    x = torch.rand(100, 100)
    node = nodes(function, x)[-1]
    cost = measure_call(node, CPU)
    kept: list = []
    peak = record(lambda: kept.append(function(x))).peak
    assert cost.workspace_bytes == peak - output_bytes(node)
    if workspace is not None:
        assert cost.workspace_bytes == workspace
    assert 0 < cost.seconds < 0.1


def test_probabilities_are_made_up_in_a_second_try() -> None:
    node = nodes(lambda a: torch.bernoulli(a), torch.rand(100))[-1]
    assert measure_call(node, CPU).seconds > 0


def test_a_call_that_refuses_counts_as_free() -> None:
    def shapeless(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return aten.linalg_cholesky_ex.default(a, check_errors=True)[0] + i

    node = next(
        n
        for n in nodes(shapeless, torch.eye(3) * 2, torch.ones(3))
        if n.target is aten.linalg_cholesky_ex.default
    )
    # Neither random numbers nor zeros are positive definite.
    assert measure_call(node, CPU) == Cost(0.0, 0)


def test_measuring_draws_nothing_from_the_users_generator(tmp_path: Path) -> None:
    found = nodes(lambda a: torch.rand_like(a) + torch.bernoulli(a), torch.rand(10))
    before = torch.get_rng_state()
    table(tmp_path)(found)
    assert torch.equal(torch.get_rng_state(), before)


def test_measuring_is_real_inside_a_fake_mode(tmp_path: Path) -> None:
    found = nodes(lambda a: torch.mm(a, a), torch.rand(64, 64))
    with FakeTensorMode():
        cost = table(tmp_path)(found)[found[0]]
    assert cost.seconds > 0


def test_indices_are_in_range_and_layouts_are_kept() -> None:
    def lookup(w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return aten.embedding.default(w.t().expand(8, 5), i)

    (node,) = nodes(lookup, torch.rand(5, 1), torch.tensor([1, 7]))
    (weight, index), _ = materialise((node.args, node.kwargs))
    assert index.tolist() == [0, 0]
    fake = node.args[0].meta["val"]
    assert (weight.shape, weight.stride()) == (fake.shape, fake.stride())
    assert weight.untyped_storage().nbytes() == 20  # an expanded dimension takes nothing
    assert measure_call(node, CPU).seconds > 0


def test_one_value_in_two_places_is_one_tensor() -> None:
    (node,) = nodes(lambda a: a * a, torch.rand(5))
    (left, right), _ = materialise((node.args, node.kwargs))
    assert left is right


def test_empty_tensors() -> None:
    (node,) = nodes(lambda a: torch.exp(a), torch.rand(0, 3))
    (made,), _ = materialise((node.args, node.kwargs))
    assert made.shape == (0, 3)
