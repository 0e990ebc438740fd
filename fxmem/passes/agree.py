"""Values as operators really make them, where torch's rules for fake tensors say otherwise.

The traced graph knows dtypes, shapes and strides from rules that stand beside the operators, and
some err (2.13: strides of ``hardswish_backward`` and of dropout's backward on a transposed value;
dtypes of batch norm's statistics under autocast). Bytes planned with them are wrong, and so is
whether autograd will copy a gradient. Measuring costs runs each operator for real, which tells.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx as fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from ..costs import Cost, CostTable, Layout
from ..storages import operators

#: Of each of a node's results; None of one that is no tensor.
Layouts = tuple[Layout | None, ...]

log = logging.getLogger("fxmem")


def agree(joint: fx.GraphModule, costs: CostTable) -> fx.GraphModule:
    """Return a joint graph whose values lie in memory as those that operators make.

    Parameters
    ----------
    joint : torch.fx.GraphModule
        Nodes carry their fake value in ``meta["val"]``.
    costs : CostTable
        Those that it gives for a corrected graph's calls are those of its real arguments.
    """
    mode = detect_fake_mode([n.meta.get("val") for n in joint.graph.nodes])
    if mode is None:
        return joint
    while wrong := _wrong(costs(list(operators(joint.graph)))):
        log.info("%s: not as traced", ", ".join(node.name for node in wrong))
        joint = _corrected(joint, wrong, mode)
    return joint


def differences(new: fx.GraphModule, old: fx.GraphModule) -> dict[str, Layouts]:
    """Name -> layouts of the values in ``new`` that lie otherwise than those in ``old``."""
    pairs = zip(new.graph.nodes, old.graph.nodes, strict=True)
    found = {a.name: (_layouts(a.meta.get("val")), _layouts(b.meta.get("val"))) for a, b in pairs}
    return {name: mine for name, (mine, other) in found.items() if mine != other}


def with_layouts(joint: fx.GraphModule, layouts: Mapping[str, Layouts]) -> fx.GraphModule:
    """Return the joint graph with values as `differences` told of another process's."""
    graph = _copy(joint)
    mode = detect_fake_mode([n.meta.get("val") for n in graph.nodes])
    for node in graph.nodes:
        if node.name in layouts:
            assert mode is not None
            node.meta["val"] = _laid_out(node.meta["val"], layouts[node.name], mode)
    return fx.GraphModule(joint, graph)


def _wrong(costs: Mapping[fx.Node, Cost]) -> dict[fx.Node, Cost]:
    """Nodes whose values are not as their costs say."""
    return {
        node: cost
        for node, cost in costs.items()
        if cost.results and not _as_told(cost.results, node.meta.get("val"))
    }


def _as_told(layouts: Layouts, value: Any) -> bool:
    pairs = zip(layouts, _layouts(value), strict=True)
    return all(real is None or fake is None or real.same(fake) for real, fake in pairs)


def _layouts(value: Any) -> Layouts:
    return tuple(map(Layout.of, _values(value)))


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _copy(joint: fx.GraphModule) -> fx.Graph:
    """The graph anew, with the same names and what is told of its outputs."""
    graph = fx.Graph()
    result: Any = graph.graph_copy(joint.graph, {})
    graph.output(result).meta = dict(joint.graph.output_node().meta)
    return graph


def _corrected(
    joint: fx.GraphModule, wrong: Mapping[fx.Node, Cost], mode: FakeTensorMode
) -> fx.GraphModule:
    """The graph with the first of the wrong values corrected, and all that follows from them."""
    graph = _copy(joint)
    pairs = zip(joint.graph.nodes, graph.nodes, strict=True)
    layouts = {new: wrong[old].results for old, new in pairs if old in wrong}
    changed: set[fx.Node] = set()
    with torch.no_grad():
        for node in graph.nodes:
            value = node.meta.get("val")
            if node.op == "call_function" and not changed.isdisjoint(node.all_input_nodes):
                new = _again(node)
            elif node in layouts:
                new = _laid_out(value, layouts[node], mode)
            else:
                continue
            if _layouts(new) != _layouts(value):
                node.meta["val"] = new
                changed.add(node)
    return fx.GraphModule(joint, graph)


def _again(node: fx.Node) -> Any:
    """What the node makes of its arguments as they are now; as traced, where it refuses them."""
    assert callable(node.target)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        return node.target(*args, **kwargs)
    except RuntimeError as error:
        log.info("%s refuses real values: %s", node.name, error)
        return node.meta["val"]


def _laid_out(value: Any, layouts: Layouts, mode: FakeTensorMode) -> Any:
    """Fake tensors that lie in memory as told, for those of a node's value."""

    def one(old: Any, layout: Layout | None) -> Any:
        if layout is None or not isinstance(old, torch.Tensor):
            return old
        dtype = getattr(torch, layout.dtype)
        with mode:
            return torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=old.device)

    made = [one(old, new) for old, new in zip(_values(value), layouts, strict=True)]
    return type(value)(made) if isinstance(value, (tuple, list)) else made[0]
