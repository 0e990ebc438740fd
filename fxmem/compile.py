"""Graphs to callables: straight-line code that frees every value after its last use."""

from __future__ import annotations

import operator as py_operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload

aten = torch.ops.aten

# Reduced to a scalar, these still lie in a storage of their input's size (read in 2.13, CPU).
_OVERSIZED = {
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.soft_margin_loss.default,
    aten.binary_cross_entropy.default,
}


def boxed(
    module: fx.GraphModule, mark: Callable[[int], None] | None = None
) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Compile ``module`` to a function of one list, which it empties.

    The list is emptied so that an argument can be freed after its last use, as every other
    value is: a caller that keeps no reference of its own holds nothing longer than planned.

    Parameters
    ----------
    module : fx.GraphModule
        Its graph may hold placeholders, ``get_attr``, ``call_function`` and one output.
    mark : callable, optional
        Called with the position of each node before it runs.
    """
    source, names = _write(module, mark)
    code = compile(source, f"<fxmem {module.graph.output_node().name} {id(module)}>", "exec")
    exec(code, names)
    function = names["step"]
    function._boxed_call = True
    function.source = source
    return function


def _write(
    module: fx.GraphModule, mark: Callable[[int], None] | None
) -> tuple[str, dict[str, Any]]:
    graph = module.graph
    last_use = last_uses(graph)
    names: dict[str, Any] = {"inf": float("inf"), "nan": float("nan"), "torch": torch}
    arguments = [n.name for n in graph.nodes if n.op == "placeholder"]
    lines = ["def step(args):"]
    if arguments:
        lines += [f"    {', '.join(arguments)}, = args"]
    lines += ["    args.clear()"]
    unused = [n.name for n in graph.nodes if n.op == "placeholder" and not n.users]
    if unused:
        lines.append(f"    {' = '.join(unused)} = None")
    for position, node in enumerate(graph.nodes):
        if node.op == "call_function":
            if mark is not None:
                lines.append(f"    {_bind(mark, names, 'mark')}({position})")
            lines.append(f"    {node.name} = {_call(node, names)}")
        elif node.op == "get_attr":
            names[node.name] = _attribute(module, str(node.target))
            continue
        elif node.op == "output":
            lines.append(f"    return {_text(tuple(node.args[0]), names)}")  # type: ignore[arg-type]
            continue
        dead = [n.name for n in last_use.get(node, ()) if n.op != "get_attr"]
        if node.op == "call_function" and not node.users:
            dead.append(node.name)
        if dead:
            lines.append(f"    {' = '.join(dead)} = None")
    return "\n".join(lines), names


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node -> the values that are used there for the last time."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for argument in node.all_input_nodes:
            last[argument] = node
    grouped: dict[fx.Node, list[fx.Node]] = {}
    for value, user in last.items():
        grouped.setdefault(user, []).append(value)
    return grouped


def _call(node: fx.Node, names: dict[str, Any]) -> str:
    if node.target is py_operator.getitem:
        source, index = node.args
        return f"{_text(source, names)}[{index!r}]"
    # The overload's own callable: OpOverload.__call__ only adds a Python frame.
    target = node.target._op if isinstance(node.target, OpOverload) else node.target
    function = _bind(target, names, "op")
    parts = [_text(a, names) for a in node.args]
    parts += [f"{key}={_text(value, names)}" for key, value in node.kwargs.items()]
    call = f"{function}({', '.join(parts)})"
    return f"{call}.clone()" if _is_oversized(node) else call


def _is_oversized(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return node.target in _OVERSIZED and isinstance(value, torch.Tensor) and value.dim() == 0


def _text(value: Any, names: dict[str, Any]) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, tuple):
        return "(" + "".join(f"{_text(v, names)}, " for v in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_text(v, names) for v in value) + "]"
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    return _bind(value, names, "constant")


def _bind(value: Any, names: dict[str, Any], prefix: str) -> str:
    """Give an object a name in the generated function's globals, the same object once."""
    name = f"_{prefix}_{id(value):x}"
    names[name] = value
    return name


def _attribute(module: torch.nn.Module, target: str) -> Any:
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part)
    return found
