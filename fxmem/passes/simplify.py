"""Drop what costs time or memory and changes no number.

Common subexpressions are merged, `detach`, `alias` and views that change nothing go, and so
do copies of a value that nobody overwrites: the traced graph is functional, so a copy with
the layout of its source can be its source.
"""

from __future__ import annotations

import torch
import torch.fx as fx

from ..storages import StorageMap, is_view, map_storages
from .common import merge_common
from .module import module_of

aten = torch.ops.aten
_IDENTITIES = {aten.detach.default, aten.alias.default}


def simplify(joint: fx.GraphModule) -> fx.GraphModule:
    """Return a new joint graph without repeats, empty views, needless copies or dead nodes."""
    graph = merge_common(joint.graph)
    _drop_views(graph)
    _drop_copies(graph)
    # Unread random draws stay (the default calls them pure while torch.compile is at work):
    # the generator must end where eager's does.
    graph.eliminate_dead_code(lambda n: n.is_impure())
    graph.lint()
    return module_of(joint, graph)


def _drop_views(graph: fx.Graph) -> None:
    outputs = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        if node in outputs or not is_view(node) or not node.all_input_nodes:
            continue
        source = node.all_input_nodes[0]
        if len(node.all_input_nodes) == 1 and _same_layout(node, source):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _drop_copies(graph: fx.Graph) -> None:
    storages = map_storages(graph)
    leaving = {s for node in graph.output_node().all_input_nodes for s in storages.of[node]}
    for node in list(graph.nodes):
        if node.target is aten.clone.default and _needless(node, storages, leaving):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _needless(node: fx.Node, storages: StorageMap, leaving: set[int]) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    (copied,), (made,) = storages.of[source][:1], storages.of[node]
    return (
        _same_layout(node, source)
        and storages.size[copied] == storages.size[made]
        # Outputs stay apart from each other, and inputs may be written to by the caller.
        and copied not in leaving
        and made not in leaving
        and storages.made_by[copied].op == "call_function"
    )


def _same_layout(node: fx.Node, source: fx.Node) -> bool:
    new, old = node.meta.get("val"), source.meta.get("val")
    if not (isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor)):
        return False
    return (
        new.dtype == old.dtype
        and new.shape == old.shape
        and new.stride() == old.stride()
        and new.storage_offset() == old.storage_offset()
        and new.is_conj() == old.is_conj()
        and new.is_neg() == old.is_neg()
    )
