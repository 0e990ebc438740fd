"""Cutting a joint graph into stages: at every operator, no parameter lies in two of them."""

from __future__ import annotations

import pytest

from fxmem.passes.stage_homes import forward_operators
from fxmem.passes.stages import cut
from fxmem.stages.trace import capture
from tests.pipelines import tiny_gpt, tiny_unet


@pytest.mark.parametrize("make, tied", [(tiny_gpt, {"model.words.weight"}), (tiny_unet, set())])
def test_a_parameter_lies_in_one_stage_whatever_the_cut(make, tied) -> None:
    model, x, target, loss_fn = make()
    joint = capture(model, (x[:4], target[:4]), loss_fn)
    every = {f"model.{n}" for n, _ in model.named_parameters(remove_duplicate=False)}
    for place in range(1, len(forward_operators(joint))):
        held = [{*s.names("parameter"), *s.weights} for s in cut(joint, (place,))]
        assert held[0] & held[1] <= tied
        assert held[0] | held[1] == every
