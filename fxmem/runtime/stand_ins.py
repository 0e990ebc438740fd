"""Outputs for a rehearsal: of the right shapes, and nothing has run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx


class StandIns:
    """Makes the outputs of a forward graph.

    Parameters
    ----------
    module : torch.fx.GraphModule
    written : sequence of int
        Places, among the arguments, of the inputs whose new values come first.
    """

    def __init__(self, module: fx.GraphModule, written: Sequence[int]) -> None:
        outputs: Any = module.graph.output_node().args[0]
        self._shapes = [v.meta.get("val") if isinstance(v, fx.Node) else v for v in outputs]
        self._written = written

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """The outputs; mutated inputs keep their values, and ``args`` is emptied."""
        made = []
        for position, shape in enumerate(self._shapes):
            if position < len(self._written):
                made.append(args[self._written[position]].clone())
            elif isinstance(shape, torch.Tensor):
                # One element stands for all: nothing of the step's size is allocated.
                one = torch.zeros((), dtype=shape.dtype, device=shape.device)
                made.append(one.expand(shape.shape))
            else:
                made.append(shape)
        args.clear()
        return tuple(made)
