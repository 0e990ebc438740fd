"""Graphs on their way from one pass to the next."""

from __future__ import annotations

import torch.fx as fx
from torch.fx._lazy_graph_module import (  # private; 2.11 to 2.15
    _make_graph_module,
    _use_lazy_graph_module,
)


def module_of(root: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """Return ``graph`` with the attributes of ``root``; its code is made when it is called.

    Most graphs go on to another pass, and writing their code takes as long as a pass.
    """
    with _use_lazy_graph_module(True):
        return _make_graph_module(root, graph)
