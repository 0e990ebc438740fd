"""Capture a model and its loss as one joint graph, without storage for its parameters."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors  # 2.9 to 2.15
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from ..errors import TraceError
from ..passes.simplify import simplify

Loss = Callable[[Any, Any], torch.Tensor]


class WithLoss(torch.nn.Module):
    """A model and its loss: takes the model's inputs and, where there is a loss, the target."""

    def __init__(self, model: torch.nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs: Any) -> torch.Tensor:
        """The loss, a scalar."""
        if self.loss is None:
            return self.model(*inputs)
        return self.loss(self.model(*inputs[:-1]), inputs[-1])


PREFIX = "model."


def capture(model: torch.nn.Module, inputs: Sequence[Any], loss: Loss | None) -> fx.GraphModule:
    """The joint graph of one microbatch, simplified, with descriptors.

    Parameters
    ----------
    model : torch.nn.Module
        On any device, "meta" included: nothing of it is read.
    inputs : sequence
        Of one microbatch; the target last, where there is a loss.
    loss : callable, optional
        Of (output, target); None where the model returns its loss.
    """
    made: dict[int, torch.Tensor] = {}
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            empty = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
            if isinstance(tensor, torch.nn.Parameter):
                empty = torch.nn.Parameter(empty, tensor.requires_grad)
            made[id(tensor)] = empty
        return made[id(tensor)]

    with mode, contextlib.ExitStack() as stack:
        # A copy that shares nothing and holds nothing: each tensor is told to be its fake.
        tensors = [*model.parameters(), *model.buffers()]
        twin = copy.deepcopy(model, {id(t): fake(t) for t in tensors})
        given = tuple(tree_map_only(torch.Tensor, fake, tuple(inputs)))
        # Libraries ask whether they are traced, and then look at no values: Transformers' masks.
        stack.enter_context(mock.patch.object(torch.compiler, "_is_compiling_flag", True))
        try:
            exported = aot_export_joint_with_descriptors(stack, WithLoss(twin, loss), given)
        except Exception as error:
            raise TraceError(f"the model could not be captured as one graph: {error}") from error
        joint = exported.graph_module
    meta = dict(joint.graph.output_node().meta)
    simple = simplify(joint)
    simple.graph.output_node().meta = meta
    return simple
