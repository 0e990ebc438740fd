"""Values as operators really make them, where torch's rules for fake tensors say otherwise.

The traced graph knows dtypes, shapes and strides from rules that stand beside the operators, and
some err (2.13: strides of ``hardswish_backward`` and of dropout's backward on a transposed value;
dtypes of batch norm's statistics under autocast). Bytes planned with them are wrong, and so is
whether autograd will copy a gradient. Measuring costs runs each operator for real, which tells;
views are run on tensors without memory.

Strides of dimensions with one element say nothing of memory, but group norm asks for them: of a
batch of one, torch's own capture passes on a view that it then refuses, or in backward reads in
the wrong order. There a view restores what was traced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx as fx
from torch._dispatch.python import no_python_dispatcher  # private; 2.11 to 2.15
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes  # private; 2.11 to 2.15

from ..costs import CostTable
from ..costs.layouts import Layout, Layouts, layouts, unlike
from ..storages import is_view, operators
from .module import module_of

aten = torch.ops.aten
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
    # Each round rights the first of the wrong values: there are no more rounds than values.
    for _ in joint.graph.nodes:
        told = costs(list(operators(joint.graph)))
        found = {n: cost.results for n, cost in told.items() if cost.results} | _views(joint.graph)
        wrong = {n: real for n, real in found.items() if unlike(real, layouts(n.meta.get("val")))}
        if not wrong:
            break
        log.info("not as traced: %s", ", ".join(n.name for n in wrong))
        joint = _corrected(joint, wrong, mode)
    return joint


def _views(graph: fx.Graph) -> dict[fx.Node, Layouts]:
    """How views really lie; nothing of one that refuses its argument."""
    found = {}
    # The caller is in the midst of a trace, which puts rules in Python in front of real ones.
    with no_python_dispatcher(), _disable_current_modes(), torch.no_grad():
        for node in graph.nodes:
            if is_view(node):
                try:
                    found[node] = layouts(_run(node, _without_memory))
                except RuntimeError as error:
                    log.info("%s refuses its argument: %s", node.name, error)
    return found


def _corrected(
    joint: fx.GraphModule, wrong: Mapping[fx.Node, Layouts], mode: FakeTensorMode
) -> fx.GraphModule:
    """The graph with the first of the wrong values corrected, and all that follows from them."""
    graph = fx.Graph()
    placed: dict[fx.Node, fx.Node] = {}
    result: Any = graph.graph_copy(joint.graph, placed)
    graph.output(result).meta = dict(joint.graph.output_node().meta)
    real = {placed[node]: found for node, found in wrong.items()}
    changed: set[fx.Node] = set()
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op == "call_function" and not changed.isdisjoint(node.all_input_nodes):
            new = _again(node)
        elif node in real:
            new = _as_real(value, real[node], None if is_view(node) else mode)
        else:
            continue
        if layouts(new) == layouts(value):
            continue
        node.meta["val"] = new
        if isinstance(value, torch.Tensor) and _lie_alike(new, value):
            _restore(node, value)
        else:
            changed.add(node)
    return module_of(joint, graph)


def _lie_alike(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Do they differ only in strides of dimensions with one element?"""
    one, other = Layout.of(new), Layout.of(old)
    return one is not None and other is not None and one.same(other)


def _restore(node: fx.Node, traced: torch.Tensor) -> None:
    """Readers of the node see it through a view with the strides that were traced."""
    told = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")}
    with node.graph.inserting_after(node):
        args = node, list(traced.shape), list(traced.stride())
        view = node.graph.call_function(aten.as_strided.default, args)
    view.meta = {**told, "val": traced}
    node.replace_all_uses_with(view, delete_user_cb=lambda user: user is not view)


def _again(node: fx.Node) -> Any:
    """What the node makes of its arguments as they are now; as traced, where it refuses them."""
    try:
        with torch.no_grad():
            return _run(node, lambda value: value)
    except RuntimeError as error:
        log.info("%s refuses its arguments: %s", node.name, error)
        return node.meta["val"]


def _run(node: fx.Node, argument: Any) -> Any:
    assert callable(node.target)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: argument(n.meta["val"]))
    return node.target(*args, **kwargs)


def _without_memory(value: Any) -> Any:
    """The same on the "meta" device, whose views are made by the rules of real ones."""
    made = [
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta")
        if isinstance(v, torch.Tensor)
        else v
        for v in _values(value)
    ]
    return type(value)(made) if isinstance(value, (tuple, list)) else made[0]


def _as_real(value: Any, real: Layouts, mode: FakeTensorMode | None) -> Any:
    """Fake tensors that lie in memory as told: new ones, or, without a mode, views of the old."""

    def one(old: Any, layout: Layout | None) -> Any:
        if layout is None or not isinstance(old, torch.Tensor):
            return old
        if mode is None:
            return old.as_strided(layout.shape, layout.strides, old.storage_offset())
        dtype = getattr(torch, layout.dtype)
        with mode:
            return torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device=old.device)

    made = [one(old, new) for old, new in zip(_values(value), real, strict=True)]
    return type(value)(made) if isinstance(value, (tuple, list)) else made[0]


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]
