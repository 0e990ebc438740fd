"""What pictures of a plan need beyond its numbers: the graph, and how long each value lives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import torch.fx as fx

from .lower import NANOSECONDS, Lowered
from .simulate import Lifetime
from .solvers.remat import RematSolution

PHASES = ("forward", "backward")


@dataclass(frozen=True)
class Operator:
    """One operator of the traced graph.

    Attributes
    ----------
    name : str
        Node of the traced graph.
    target : str
        What it calls, such as ``"aten.addmm.default"``.
    module : str
        Where it was called, outermost module first, as in ``"transformer/h.0/attn"``; empty
        outside all of them. A backward operator belongs to the module of its forward one.
    phase : str
        ``"forward"`` or ``"backward"``.
    bytes : int
        Of the values that it makes.
    seconds : float
        Of one run.
    inputs : tuple of int
        Positions of the operators whose values it reads.
    """

    name: str
    target: str
    module: str
    phase: str
    bytes: int
    seconds: float
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Improvement:
    """A better plan, or a better bound, that the solver found.

    Attributes
    ----------
    after : float
        Seconds since the solver began.
    seconds, bound_seconds : float
        Time of the step by the best plan until then, and the lower bound then.
    """

    after: float
    seconds: float
    bound_seconds: float


@dataclass(frozen=True)
class StepPicture:
    """The graph of a step, frozen.

    Attributes
    ----------
    operators : tuple of Operator
        In traced order.
    lifetimes : tuple of Lifetime
        Of every value that the planned step makes.
    residents : mapping
        Kind (``"parameters"``, ``"optimizer"``, ...) -> bytes held throughout; empty where only
        their sum is known.
    progress : tuple of Improvement
        Of the search that found the plan, if there was need of one. Two pictures that
        differ in it alone are equal: clocks do not repeat.
    owners : mapping
        Moved value -> its operator, where that has several values.
    """

    operators: tuple[Operator, ...]
    lifetimes: tuple[Lifetime, ...]
    residents: Mapping[str, int] = field(default_factory=dict)
    progress: tuple[Improvement, ...] = field(default=(), compare=False)
    owners: Mapping[str, str] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """As JSON can hold it; names of modules are written once."""
        modules = list(dict.fromkeys(o.module for o in self.operators))
        number = {module: i for i, module in enumerate(modules)}
        return {
            "modules": modules,
            "operators": [
                [o.name, o.target, number[o.module], o.phase, o.bytes, o.seconds, list(o.inputs)]
                for o in self.operators
            ],
            "lifetimes": [list(asdict(life).values()) for life in self.lifetimes],
            "residents": dict(self.residents),
            "owners": dict(self.owners),
            "progress": [list(astuple(p)) for p in self.progress],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StepPicture:
        """What `to_row` made."""
        modules = row["modules"]
        return cls(
            tuple(
                Operator(name, target, modules[module], phase, size, seconds, tuple(inputs))
                for name, target, module, phase, size, seconds, inputs in row["operators"]
            ),
            tuple(Lifetime(*life) for life in row["lifetimes"]),
            row["residents"],
            tuple(Improvement(*p) for p in row["progress"]),
            row.get("owners", {}),
        )


def draw_step(
    lowered: Lowered, lifetimes: Sequence[Lifetime], solution: RematSolution
) -> StepPicture:
    """Freeze what pictures need of a planned step."""
    return StepPicture(
        _operators(lowered),
        tuple(lifetimes),
        progress=tuple(
            Improvement(after, time / NANOSECONDS, bound / NANOSECONDS)
            for after, time, bound in solution.history
        ),
    )


def _operators(lowered: Lowered) -> tuple[Operator, ...]:
    problem = lowered.problem
    assert problem.turn is not None
    # The turn is no operator; what stands behind it moves up by one.
    kept = [v for v in range(problem.count) if v != problem.turn]
    number = {v: i for i, v in enumerate(kept)}
    modules: dict[int, str] = {}
    rows = []
    for v in kept:
        node = lowered.operators[v]
        assert node is not None
        inputs = tuple(number[u] for u in problem.inputs[v] if u != problem.turn)
        backward = v > problem.turn
        modules[number[v]] = module_of(node)
        if backward and not modules[number[v]]:
            # A sum of gradients belongs to no module: it stands with the last that it sums.
            late = [u for u in inputs if kept[u] > problem.turn]
            modules[number[v]] = modules[max(late)] if late else ""
        rows.append(
            Operator(
                node.name,
                str(node.target),
                modules[number[v]],
                PHASES[backward],
                sum(problem.size[s] for s in problem.writes[v]),
                problem.time[v] / NANOSECONDS,
                inputs,
            )
        )
    return tuple(rows)


def module_of(node: fx.Node) -> str:
    """The modules around a node, outermost first, each named within the one around it.

    Dynamo leaves ``nn_module_stack`` on forward nodes, and AOTAutograd ``fwd_nn_module_stack`` on
    backward ones (read in 2.13).
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    parts, outer = [], ""
    for path, _ in stack.values():
        plain = _plain(path)
        inner = plain.removeprefix(outer + ".") if outer else plain
        if inner and plain != outer:
            parts.append(inner)
        outer = plain
    return "/".join(parts)


def _plain(path: str) -> str:
    """``L['self'].model._modules['h'][0]`` -> ``model.h.0``."""
    dotted = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", re.sub(r"^L\['\w+'\]", "", path))
    return ".".join(p for p in dotted.split(".") if p not in ("", "__dict__", "_modules"))
