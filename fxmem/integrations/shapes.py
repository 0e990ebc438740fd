"""A graph whose sizes Dynamo leaves open, planned for each set of sizes that comes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..errors import BudgetWarning

# Plans kept for one graph. Whoever feeds more sets of sizes is better off with padding.
MOST_SIZES = 64

Call = Callable[..., Any]


def has_open_sizes(inputs: Sequence[Any]) -> bool:
    """Did Dynamo capture a graph for more than one set of sizes?"""
    return any(isinstance(value, torch.SymInt) for value in inputs)


class BySizes:
    """The callable of one graph: made anew for each set of sizes, kept for the next time.

    An exact plan needs exact bytes, so there is none for sizes that are open.

    Parameters
    ----------
    graph : fx.GraphModule
        As Dynamo captured it: among its inputs are the open sizes.
    make : callable
        Plans a graph of fixed sizes for its inputs, tensors only.
    """

    def __init__(
        self, graph: fx.GraphModule, make: Callable[[fx.GraphModule, Sequence[Any]], Call]
    ) -> None:
        self.graph = fx.GraphModule(graph, fx.Graph())
        self.graph.graph.output(self.graph.graph.graph_copy(graph.graph, {}))
        self.make = make
        self.made: dict[tuple[Any, ...], Call] = {}
        self._warned = False

    def __call__(self, *args: Any) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        key = tuple((a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in args)
        if key not in self.made:
            self._bound()
            self.made[key] = self.make(fix_sizes(self.graph, args), tensors)
        return self.made[key](*tensors)

    def _bound(self) -> None:
        if len(self.made) < MOST_SIZES:
            return
        del self.made[next(iter(self.made))]
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"fxmem: more than {MOST_SIZES} sets of input sizes; the oldest plan is dropped "
                "for each new one. Pad inputs to a few sizes, so that steps need not be planned.",
                BudgetWarning,
                stacklevel=3,
            )


def fix_sizes(graph: fx.GraphModule, args: Sequence[Any]) -> fx.GraphModule:
    """The graph with numbers in the place of the inputs that are numbers."""
    sources = [n for n in graph.graph.nodes if n.op == "placeholder"]
    numbers: dict[fx.Node, Any] = {
        n: a for n, a in zip(sources, args, strict=True) if not isinstance(a, torch.Tensor)
    }
    fixed = fx.GraphModule(graph, fx.Graph())
    fixed.graph.output(fixed.graph.graph_copy(graph.graph, numbers))
    fixed.recompile()
    return fixed
