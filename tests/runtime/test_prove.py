"""A proof runs the step, and nothing of it is left."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxmem.runtime.prove import prove

CPU = torch.device("cpu")


def empty(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def peak_of(
    forward: Any, backward: Any, outputs: int = 1, written: int = 0, tangents: Any = ()
) -> int:
    proof = prove(forward, backward, [torch.ones(1)], outputs, written, tangents, CPU)
    return proof.peak_bytes


def test_peak_of_both_parts() -> None:
    def forward(args: list[Tensor]) -> tuple[Tensor, ...]:
        args.clear()
        return empty(100), empty(1000)

    def backward(args: list[Tensor]) -> tuple[Tensor, ...]:
        args.clear()  # frees the saved value, as ours do
        return (empty(500),)

    assert peak_of(forward, backward) == 1100

    def larger(args: list[Tensor]) -> tuple[Tensor, ...]:
        return (empty(700),)

    # The output is held by the caller throughout the backward part.
    assert peak_of(forward, larger) == 100 + 1000 + 700


def test_new_values_of_inputs_are_freed_before_backward() -> None:
    def forward(args: list[Tensor]) -> tuple[Tensor, ...]:
        return empty(400), empty(100), empty(10)

    def backward(args: list[Tensor]) -> tuple[Tensor, ...]:
        return (empty(600),)

    assert peak_of(forward, backward, outputs=2, written=0) == 400 + 100 + 10 + 600
    assert peak_of(forward, backward, outputs=2, written=1) == 100 + 10 + 600


def test_gradients_start_from_tensors_of_the_right_kind() -> None:
    seen: list[Tensor] = []

    def backward(args: list[Tensor]) -> tuple[Tensor, ...]:
        seen.extend(args)
        return ()

    tangents = [torch.empty(3, 4, dtype=torch.float64), torch.empty(())]
    peak_of(lambda args: (empty(1), empty(7)), backward, tangents=tangents)
    assert [(t.shape, t.dtype) for t in seen[1:]] == [((3, 4), torch.float64), ((), torch.float32)]
    assert seen[0].numel() == 7


def test_without_effects() -> None:
    weight = torch.ones(3, requires_grad=True)

    def forward(args: list[Tensor]) -> tuple[Tensor, ...]:
        assert not torch.is_grad_enabled()
        return (torch.rand(3) * weight,)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    arguments = [torch.ones(1)]
    prove(forward, lambda args: (torch.rand(9),), arguments, 1, 0, [], CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert weight.grad is None
    assert len(arguments) == 1
