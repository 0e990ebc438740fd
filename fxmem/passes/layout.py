"""Gradients in the layout of their variables, where autograd would copy them into it anyway.

Autograd keeps a gradient as it is only if its strides are those of the leaf it belongs to (read
in 2.11 to 2.13: `AccumulateGrad` and `grad_layout_contract.h`). Else it makes a copy when the
step's gradients are all there, beyond what any plan can see. As an operator of the graph the same
copy is made where the plan wants it, and charged. Convolutions on channels-last values do this.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._functorch._aot_autograd.descriptors import (  # private; there since 2.9
    GradAOTOutput,
    PlainAOTInput,
)

from .module import module_of

aten = torch.ops.aten


def lay_out_gradients(
    joint: fx.GraphModule, leaves: Collection[int], misplaced: Collection[int] = ()
) -> fx.GraphModule:
    """Return a new joint graph whose gradients have the strides of the leaves they belong to.

    Parameters
    ----------
    joint : torch.fx.GraphModule
        As AOTAutograd makes it, with a descriptor of each input and output.
    leaves : collection of int
        Positions of the inputs, as Dynamo counts them, whose gradients autograd accumulates.
    misplaced : collection of int
        Those whose gradients turned out to have other strides than the graph says: copied anyway.
    """
    graph = fx.Graph()
    placed: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(joint.graph, placed)
    output = joint.graph.output_node()
    inputs = {
        n.meta["desc"].idx: n.meta.get("val")
        for n in joint.graph.nodes
        if n.op == "placeholder" and isinstance(n.meta.get("desc"), PlainAOTInput)
    }
    assert isinstance(result, (list, tuple))
    laid_out = list(result)
    for i, desc in enumerate(output.meta.get("desc") or ()):
        value = laid_out[i]
        if _of_a_leaf(desc, leaves) and isinstance(value, fx.Node):
            leaf = desc.grad_of.idx
            order = _order_wanted(value.meta.get("val"), inputs.get(leaf), leaf in misplaced)
            if order is not None:
                laid_out[i] = _laid_out(graph, value, order)
    graph.output(type(result)(laid_out)).meta = dict(output.meta)
    return module_of(joint, graph)


def leaf_gradients(
    joint: fx.GraphModule, forward_outputs: int, leaves: Collection[int]
) -> dict[int, tuple[int, torch.Tensor]]:
    """Place among the gradients -> its leaf, and the fake tensor that the graph has of it.

    Parameters
    ----------
    joint : torch.fx.GraphModule
        What `lay_out_gradients` returned.
    forward_outputs : int
        How many of its outputs are no gradients.
    leaves : collection of int
        As of `lay_out_gradients`.
    """
    output = joint.graph.output_node()
    values: Any = output.args[0]
    told = list(zip(values, output.meta.get("desc") or (), strict=False))[forward_outputs:]
    return {
        place: (desc.grad_of.idx, value.meta["val"])
        for place, (value, desc) in enumerate(told)
        if isinstance(value, fx.Node) and _of_a_leaf(desc, leaves)
    }


def misplaced(
    gradients: Mapping[int, tuple[int, torch.Tensor]], strides: Sequence[tuple[int, ...] | None]
) -> set[int]:
    """Leaves whose gradients turned out to have other strides than the graph says.

    Torch's rules for fake tensors err for some operators (2.13: ``hardswish_backward`` of a
    transposed gradient).

    Parameters
    ----------
    gradients : mapping
        Of `leaf_gradients`.
    strides : sequence of tuple of int or None
        Of the gradients that a run made.
    """
    found = set()
    for place, (leaf, told) in gradients.items():
        real = strides[place]
        matters = [d for d in range(told.dim()) if told.shape[d] > 1]
        if real is not None and any(told.stride(d) != real[d] for d in matters):
            found.add(leaf)
    return found


def _of_a_leaf(desc: object, leaves: Collection[int]) -> bool:
    return (
        isinstance(desc, GradAOTOutput)
        and isinstance(desc.grad_of, PlainAOTInput)
        and desc.grad_of.idx in leaves
    )


def _order_wanted(gradient: object, variable: object, anyway: bool) -> list[int] | None:
    """The dimensions from outermost to innermost as autograd would lay them out anew.

    None where it would keep the gradient as it is, unless they are wanted anyway.
    """
    if not (isinstance(gradient, torch.Tensor) and isinstance(variable, torch.Tensor)):
        return None
    if gradient.shape != variable.shape or gradient.layout is not torch.strided:
        return None
    # Of a variable with gaps in its memory autograd wants the gradient contiguous.
    dense = variable if _is_dense(variable) else torch.empty(variable.shape, device="meta")
    order, strides = _order(dense), dense.stride()
    matters = [d for d in order if variable.shape[d] > 1]
    same = all(gradient.stride(d) == strides[d] for d in matters)
    return None if same and not anyway else order


def _is_dense(value: torch.Tensor) -> bool:
    """Do the elements fill their range of memory, each once?"""
    return value.permute(_order(value)).is_contiguous()


def _order(value: torch.Tensor) -> list[int]:
    """Dimensions from the one with the largest stride to the one with the smallest."""
    strides = value.stride()
    return sorted(range(value.dim()), key=lambda d: -strides[d])


def _laid_out(graph: fx.Graph, value: fx.Node, order: list[int]) -> fx.Node:
    """Nodes behind ``value`` that copy it, with the dimensions of memory in this order."""
    inverse = sorted(range(len(order)), key=order.__getitem__)
    steps: list[tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object]]] = [
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (inverse,), {}),
    ]
    if order == inverse == sorted(order):
        steps = steps[1:2]
    told = {k: v for k, v in value.meta.items() if k in ("stack_trace", "nn_module_stack")}
    for target, args, kwargs in steps:
        with graph.inserting_after(value):
            node = graph.call_function(target, (value, *args), kwargs)  # type: ignore[arg-type]
        node.meta = {**told, "val": target(value.meta["val"], *args, **kwargs)}
        value = node
    return value
