"""What may be written over, and that each kernel written over its input gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.fx as fx
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.passes.reuse import _ROUNDS_OTHERWISE, _ROW_BY_ROW, candidates, overload_into, reuse
from fxmem.runtime.random import turn
from fxmem.storages import map_storages

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
# Odd, of one row, of one column, and large enough for many threads.
SHAPES = [(7, 13), (1, 1001), (1001, 1), (257, 1023)]


@pytest.fixture
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


POINTWISE: list[tuple[Any, Callable[[Tensor, Tensor], tuple[Any, ...]]]] = [
    (aten.add.Tensor, lambda a, b: (a, b)),
    (aten.sub.Tensor, lambda a, b: (b, a)),
    (aten.mul.Tensor, lambda a, b: (a, b)),
    (aten.mul.Tensor, lambda a, b: (a, a)),
    (aten.mul.Scalar, lambda a, b: (a, 0.37)),
    (aten.div.Tensor, lambda a, b: (a, b)),
    (aten.pow.Tensor_Scalar, lambda a, b: (a, 3)),
    (aten.tanh.default, lambda a, b: (a,)),
    (aten.exp.default, lambda a, b: (a,)),
    (aten.sigmoid.default, lambda a, b: (a,)),
    (aten.relu.default, lambda a, b: (a,)),
    (aten.gelu.default, lambda a, b: (a,)),
    (aten.silu.default, lambda a, b: (a,)),
    (aten.sqrt.default, lambda a, b: (a,)),
    (aten.rsqrt.default, lambda a, b: (a,)),
    (aten.where.self, lambda a, b: (b > 0, a, b)),
    (aten.addcmul.default, lambda a, b: (a, a, b)),
    (aten.tanh_backward.default, lambda a, b: (a, b)),
    (aten.sigmoid_backward.default, lambda a, b: (a, b)),
    (aten.gelu_backward.default, lambda a, b: (a, b)),
    (aten.silu_backward.default, lambda a, b: (a, b)),
    (aten.threshold_backward.default, lambda a, b: (a, b, 0)),
    (aten.clamp.default, lambda a, b: (a, -0.5, 0.5)),
]


def write_over(target: Any, args: tuple[Any, ...], place: int) -> Tensor | None:
    """The result written over a copy of one argument, as the pass would do it."""
    found = overload_into(target, place)
    if found is None:
        return None
    overload, keyword = found
    victim = args[place].clone()
    args = tuple(victim if a is args[place] else a for a in args)
    result = overload(*args, **({keyword: victim} if keyword else {}))
    assert result.data_ptr() == victim.data_ptr()
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("target", "arguments"), POINTWISE)
def test_pointwise_kernels(target, arguments, dtype: torch.dtype, many_threads) -> None:
    if dtype in _ROUNDS_OTHERWISE.get(target, ()):
        pytest.skip("never written over")
    tried = 0
    for shape in SHAPES:
        a, b = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        args = arguments(a, b)
        wanted = target(*args)
        for place, argument in enumerate(args):
            if isinstance(argument, Tensor) and argument.dtype == wanted.dtype:
                found = write_over(target, args, place)
                if found is not None:
                    tried += 1
                    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    assert tried, f"{target} can write over nothing"


def pointwise_operators() -> Iterator[Any]:
    for name in sorted(set(dir(aten)) - {"__name__"}):
        packet = getattr(aten, name, None)
        if name.startswith("__") or not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for overload in (getattr(packet, o) for o in packet.overloads()):
            tags, schema = overload.tags, overload._schema
            if (
                torch.Tag.pointwise in tags
                and torch.Tag.nondeterministic_seeded not in tags
                and not schema.is_mutable
                and len(schema.returns) == 1
            ):
                yield overload


def made_up(target: Any, dtype: torch.dtype, number: float) -> list[Any] | None:
    kinds = {"Tensor": None, "int": 1, "bool": False, "number": number, "float": number}
    found = []
    for argument in (a for a in target._schema.arguments if not a.kwarg_only):
        kind = str(argument.type)
        if kind in kinds:
            found.append(torch.randn(37, 129).to(dtype) if kind == "Tensor" else kinds[kind])
        elif argument.has_default_value():
            found.append(argument.default_value)
        else:
            return None
    return found


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
def test_every_pointwise_kernel(dtype: torch.dtype) -> None:
    """Whatever the pass may choose, of all that torch calls pointwise, with made-up arguments."""
    wrong, tried = set(), set()
    for target in pointwise_operators():
        for number in (0.37, 3):
            args = made_up(target, dtype, number)
            try:
                wanted = target(*args) if args else None
            except (RuntimeError, TypeError, NotImplementedError):
                continue
            if not isinstance(wanted, Tensor) or (wanted.dtype, wanted.shape) != (dtype, (37, 129)):
                continue
            for place, argument in enumerate(args):
                if isinstance(argument, Tensor) and overload_into(target, place):
                    tried.add(target)
                    found = write_over(target, tuple(args), place)
                    if not torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)):
                        wrong.add(target)
    assert len(tried) > 60
    assert wrong == {t for t, dtypes in _ROUNDS_OTHERWISE.items() if dtype in dtypes}


def row_arguments(target: Any, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    a, dim = torch.randn(shape).to(dtype), len(shape) - 1
    if _ROW_BY_ROW[target] == 1:
        return a, dim, False
    forward = aten._log_softmax if "log" in str(target) else aten._softmax
    return a, forward(torch.randn(shape).to(dtype), dim, False), dim, dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", _ROW_BY_ROW)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 5, 17), (2, 4, 64, 129), (5, 50257)])
def test_row_by_row_kernels(target, shape, dtype: torch.dtype, many_threads) -> None:
    args = row_arguments(target, shape, dtype)
    wanted = target(*args)
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    for place in places:
        found = write_over(target, args, place)
        assert found is not None
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


def traced(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def victims(graph: fx.GraphModule, target: Any) -> list[str]:
    storages = map_storages(graph.graph)
    node = next(n for n in graph.graph.nodes if n.target is target)
    return [a.name for a in candidates(node, storages)]


def test_inputs_are_never_written_over() -> None:
    x = torch.randn(3, 4)
    graph = traced(lambda a: torch.tanh(a), x)
    assert victims(graph, aten.tanh.default) == []


def test_only_equal_layouts() -> None:
    x = torch.randn(4, 4)

    def transposed(a: Tensor) -> Tensor:
        h, g = torch.exp(a), torch.sin(a).t()
        return h + g

    assert victims(traced(transposed, x), aten.add.Tensor) == ["exp"]
    assert victims(traced(lambda a: torch.exp(a[:1]) + torch.sin(a), x), aten.add.Tensor) == ["sin"]
    # The same storage seen in two ways by one operator.
    assert victims(traced(lambda a: (h := torch.exp(a)) + h.t(), x), aten.add.Tensor) == []
    # A part of a larger storage.
    assert victims(traced(lambda a: torch.tanh(torch.exp(a)[:2]), x), aten.tanh.default) == []
    # Another dtype.
    assert victims(traced(lambda a: torch.exp(a) > 0, x), aten.gt.Scalar) == []
    # A draw, and a softmax along another dimension than the last.
    assert victims(traced(lambda a: torch.bernoulli(torch.exp(a)), x), aten.bernoulli.default) == []
    assert victims(traced(lambda a: torch.exp(a).softmax(0), x), aten._softmax.default) == []
    assert victims(traced(lambda a: torch.exp(a).softmax(1), x), aten._softmax.default) == ["exp"]


def test_no_operator_whose_in_place_form_rounds_otherwise() -> None:
    for dtype, found in ((torch.float32, ["exp"]), (torch.bfloat16, [])):
        x = torch.randn(4, 4).to(dtype)
        graph = traced(lambda a: aten.mul.Scalar(torch.exp(a), 0.37), x)
        assert victims(graph, aten.mul.Scalar) == found


def with_turn(graph: fx.GraphModule, after: str) -> fx.GraphModule:
    node = next(n for n in graph.graph.nodes if n.name == after)
    with graph.graph.inserting_after(node):
        graph.graph.call_function(turn, (node,))
    return graph


def test_what_dies_is_written_over_and_what_lives_is_not() -> None:
    x = torch.randn(3, 4)

    def step(a: Tensor) -> Tensor:
        h = torch.exp(a)
        return torch.tanh(h), torch.sin(h)

    graph = reuse(traced(step, x))
    assert [str(n.target) for n in graph.graph.nodes if n.op == "call_function"] == [
        "aten.exp.default",
        "aten.tanh.default",
        "aten.sin.out",
    ]
    assert all(map(torch.equal, graph(x), step(x)))


def test_what_crosses_the_turn_is_not_written_over() -> None:
    x = torch.randn(3, 4)

    def step(a: Tensor) -> Tensor:
        h = torch.exp(a)
        g = torch.sin(a)
        return torch.tanh(h) * torch.cos(torch.neg(g))

    graph = reuse(with_turn(traced(step, x), "sin"))
    kept = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    assert kept[3:] == ["aten.tanh.default", "aten.neg.default", "aten.cos.out", "aten.mul.out"]


def test_generated_overloads_are_passed_over() -> None:
    """They compute out of place and copy: no byte would be saved."""
    for target in (t for t, _ in POINTWISE):
        found = overload_into(target, 0)
        assert found is not None
        assert torch.Tag.generated not in found[0].tags
    assert overload_into(aten.native_dropout.default, 0) is None
