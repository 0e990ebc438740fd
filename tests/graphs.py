"""Small random joint graphs, made of the operators that real ones hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

#: One step of a random graph: operator, argument, argument; taken modulo what there is.
Choice = tuple[int, int, int]

ROWS, WIDTH = 12, 16


def _operators(draws: bool) -> list[Callable[..., Any]]:
    aten = torch.ops.aten
    found: list[Callable[..., Any]] = [
        lambda a, b: aten.add.Tensor(a, b),
        lambda a, b: aten.mul.Tensor(a, b),
        lambda a, b: aten.tanh.default(a),
        lambda a, b: aten.sigmoid_backward.default(a, aten.sigmoid.default(b)),
        lambda a, b: aten._softmax.default(a, -1, False),
        lambda a, b: aten.mm.default(a, aten.mm.default(aten.t.default(b), a)),
        lambda a, b: aten.add.Tensor(a, aten.sum.dim_IntList(b, [0], True)),
        lambda a, b: torch.cat([x for x in a.split(WIDTH // 2, 1)][::-1], 1),
        lambda a, b: aten.native_layer_norm.default(a, [WIDTH], None, None, 1e-5)[0],
        lambda a, b: aten.add.Tensor(a.reshape(WIDTH, ROWS).t(), b),
        lambda a, b: aten.mul.Tensor(a, aten.expand.default(b[:1], [ROWS, WIDTH])),
        lambda a, b: aten.where.self(aten.gt.Scalar(a, 0.0), a, b),
        lambda a, b: aten.add.Tensor(aten.max.dim(a, 1, True)[0], b),
    ]
    if draws:
        found += [
            lambda a, b: aten.native_dropout.default(a, 0.4, True)[0],
            lambda a, b: aten.mul.Tensor(a, aten.rand_like.default(b)),
        ]
    return found


def joint_graph(
    forward: Sequence[Choice], backward: Sequence[Choice], draws: bool = True
) -> fx.GraphModule:
    """A graph with two primals and a tangent; one forward output and two gradients."""
    choose = _operators(draws)

    def step(primals_1: Tensor, primals_2: Tensor, tangents_1: Tensor) -> tuple[Tensor, ...]:
        values = [primals_1, primals_2]
        for operator, left, right in forward:
            a, b = values[left % len(values)], values[right % len(values)]
            values.append(choose[operator % len(choose)](a, b))
        out = torch.tanh(values[-1])
        gradient = tangents_1 * out
        for operator, left, right in backward:
            other = [*values, gradient][right % (len(values) + 1)]
            gradient = choose[operator % len(choose)](gradient, other) * values[left % len(values)]
        return out, gradient, gradient.sum(0)

    return make_fx(step, tracing_mode="fake")(*inputs())


def inputs(seed: int = 0) -> list[Tensor]:
    """Real inputs of such a graph."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(3)]


def plain_run(joint: fx.GraphModule, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All outputs of a graph, by torch's own interpreter."""
    return tuple(fx.Interpreter(joint).run(*args))


def same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Equal in every bit; what is not a number equals itself."""
    return len(left) == len(right) and all(
        a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(
            (x.contiguous() for x in left), (x.contiguous() for x in right), strict=True
        )
    )
