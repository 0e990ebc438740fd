"""A plan folded by module: which runs and which values belong to each part of the model."""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fxmem.errors import FxmemError
from fxmem.picture import Operator
from fxmem.plan import Keep, Moment, Offload, Plan, Recompute

#: Level -> parts that it has at the least, where the model has so many. None: no folding.
LEVELS: dict[str, int | None] = {"layers": 10, "modules": 40, "operators": None}
_MOST_TOGETHER = 250  # runs of a part that is drawn operator by operator
_FEW = 60  # operators that are drawn one by one unless another level is asked for

DECISIONS = {Keep: "kept", Recompute: "recomputed", Offload: "offloaded"}


@dataclass(frozen=True)
class Run:
    """One run of an operator.

    Attributes
    ----------
    number : int
        Position among all runs of the step.
    operator : Operator
    moment : Moment
    reads : tuple of int
        Numbers of the runs whose values it reads.
    """

    number: int
    operator: Operator
    moment: Moment
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One part of the model: a layer, a module, or what is outside of all.

    Attributes
    ----------
    module : str
        As in `Operator`, as deep as the level goes; empty outside all modules.
    title : str
        Its name for people.
    runs : tuple of Run
        Of its operators, in order.
    values : mapping
        ``"kept"``, ``"recomputed"``, ``"offloaded"`` -> names of its values.
    stage : int or None
        On which of several devices most of its forward operators run; None on one device.
    """

    module: str
    title: str
    runs: tuple[Run, ...]
    values: dict[str, tuple[str, ...]]
    stage: int | None = None

    def of(self, phase: str) -> tuple[Run, ...]:
        """First runs in ``"forward"`` or ``"backward"``, or those ``"again"``."""
        if phase == "again":
            return tuple(run for run in self.runs if run.moment.recomputed)
        return tuple(r for r in self.runs if r.moment.phase == phase and not r.moment.recomputed)


def choose_level(plan: Plan, level: str | None) -> str:
    """The level asked for, or the one that suits the size of the plan.

    Raises
    ------
    FxmemError
        There is no such level.
    """
    if level is None:
        return "operators" if len(plan.timeline) <= _FEW else "layers"
    if level not in LEVELS:
        raise FxmemError(f"level={level!r} is not known; give one of {', '.join(LEVELS)}.")
    return level


def runs_of(plan: Plan) -> tuple[Run, ...]:
    """Every run of the step, and which runs each one reads."""
    operators = _operators(plan)
    number = {o.name: o for o in operators}
    latest: dict[str, int] = {}
    runs: list[Run] = []
    for moment in plan.timeline:
        operator = number.get(moment.name)
        if operator is None:
            continue
        names = (operators[i].name for i in operator.inputs)
        reads = tuple(latest[name] for name in names if name in latest)
        latest[moment.name] = len(runs)
        runs.append(Run(len(runs), operator, moment, reads))
    return tuple(runs)


def _operators(plan: Plan) -> Sequence[Operator]:
    """Those of the picture; where there is none, a chain of what the timeline names."""
    if plan.picture is not None:
        return plan.picture.operators
    first = {m.name: m for m in reversed(plan.timeline)}
    names = list(dict.fromkeys(m.name for m in plan.timeline))
    size, before = plan.value_bytes, [(), *((i,) for i in range(len(names)))]
    return [
        Operator(n, "", "", first[n].phase, size.get(n, 0), first[n].seconds, before[i])
        for i, n in enumerate(names)
    ]


def fold(plan: Plan, level: str) -> tuple[Part, ...]:
    """The parts of a plan at ``"layers"`` or ``"modules"``, in the order of the traced graph.

    At ``"operators"`` the parts are what is drawn together: as large as can be read.
    """
    runs = runs_of(plan)
    depth = _depth([run.operator.module for run in runs], LEVELS[level])
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_top(run.operator.module, depth), []).append(run)
    place = {o.name: i for i, o in enumerate(_operators(plan))}
    titles = _titles(list(groups))
    # A plan may run a small operator of a late part early on: what counts is where most stand.
    order = sorted(groups, key=lambda module: _middle(groups[module], place))
    return tuple(
        Part(
            module,
            titles[module],
            tuple(groups[module]),
            _values(plan, groups[module]),
            _stage(plan, groups[module], place),
        )
        for module in order
    )


def _stage(plan: Plan, runs: Sequence[Run], place: Mapping[str, int]) -> int | None:
    """By the plan's cut points: the operators at which a further stage begins."""
    cuts = sorted(place[name] for name in plan.stages if isinstance(name, str) and name in place)
    forward = [place[r.operator.name] for r in runs if r.operator.phase == "forward"]
    return bisect_right(cuts, median(forward)) if cuts and forward else None


def _middle(runs: Sequence[Run], place: Mapping[str, int]) -> float:
    """Median place of the forward operators; of all, backward from the end, if there are none."""
    forward = [place[r.operator.name] for r in runs if r.operator.phase == "forward"]
    return median(forward or [len(place) - place[run.operator.name] for run in runs])


def _top(module: str, depth: int) -> str:
    return "/".join(module.split("/")[:depth])


def _depth(modules: Sequence[str], least: int | None) -> int:
    """The smallest depth at which there are enough parts, or none too large; else the deepest."""
    deepest = max((m.count("/") + 1 for m in modules), default=1)
    for depth in range(1, deepest):
        runs = Counter(_top(m, depth) for m in modules)
        if len(runs) >= least if least else max(runs.values()) <= _MOST_TOGETHER:
            return depth
    return deepest


def _titles(modules: Sequence[str]) -> dict[str, str]:
    """Dotted names without what all have in common."""
    named = [m for m in modules if m]
    shared = posixpath.commonpath(named) if named else ""
    titles = {m: m.removeprefix(shared).strip("/").replace("/", ".") or m for m in modules}
    return {**titles, "": "outside modules" if named else "the step"}


def moved_parts(plan: Plan) -> dict[str, list[str]]:
    """Operator of several values -> those of them that are moved."""
    found: dict[str, list[str]] = {}
    for value, operator in (plan.picture.owners if plan.picture else {}).items():
        found.setdefault(operator, []).append(value)
    return found


def _values(plan: Plan, runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {kind: [] for kind in DECISIONS.values()}
    parts = moved_parts(plan)
    for operator in dict.fromkeys(run.operator.name for run in runs):
        for name in (operator, *parts.get(operator, ())):
            decision = plan.decisions.get(name)
            if decision is not None:
                found[DECISIONS[type(decision)]].append(name)
    return {kind: tuple(names) for kind, names in found.items()}
