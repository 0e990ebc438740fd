"""One budget for all the graphs that Dynamo cuts a step into.

Each graph is planned by itself, when it is first seen. What the others hold meanwhile is charged
to it as resident: their parameters and gradients, and what earlier ones keep for backward. From
the second step on all of that is known, and a graph whose plan leaves too little room is planned
anew. Where a later graph finds too little, the earlier ones must keep less from then on.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx
from torch.multiprocessing.reductions import StorageWeakRef

from ..budget import Budget
from ..errors import BudgetWarning, InfeasibleBudget
from ..planning import Options
from ..residents import count_residents
from ..session import Session
from ..storages import allocated_bytes


class StepBudget:
    """The graphs of one compiled callable, and every tensor of theirs that is alive."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parts: list[Part] = []
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}

    def add(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Part:
        """Plan one more graph of the step."""
        part = Part(self, graph)
        part.compile(inputs)
        self.parts.append(part)
        return part

    def see(self, values: Iterable[Any]) -> set[int]:
        """Remember storages, for as long as they live; returns their keys."""
        keys = set()
        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                reference = StorageWeakRef(value.untyped_storage())
                keys.add(reference.cdata)
                self._seen.setdefault(reference.cdata, (reference, allocated_bytes(value)))
                if value.is_leaf and value.requires_grad:
                    self._leaves[id(value)] = weakref.ref(value)
        return keys

    def alive(self, without: set[int]) -> int:
        """Bytes of all that was seen and still lives, and of its gradients."""
        self._seen = {k: row for k, row in self._seen.items() if not row[0].expired()}
        total = sum(size for key, (_, size) in self._seen.items() if key not in without)
        for gradient in self._gradients():
            key = gradient.untyped_storage()._cdata
            if key not in without and key not in self._seen:
                total += allocated_bytes(gradient)
        return total

    def _gradients(self) -> Iterator[torch.Tensor]:
        self._leaves = {key: leaf for key, leaf in self._leaves.items() if leaf() is not None}
        for leaf in self._leaves.values():
            tensor = leaf()
            if tensor is not None and tensor.grad is not None:
                yield tensor.grad


class Part:
    """One graph of a step, planned anew where the others leave it less than its plan takes."""

    def __init__(self, step: StepBudget, graph: fx.GraphModule) -> None:
        self.step = step
        self.graph = fx.GraphModule(graph, fx.Graph())  # Dynamo's own may be changed by others
        self.graph.graph.output(self.graph.graph.graph_copy(graph.graph, {}))
        self.graph.recompile()
        self.session = Session(step.options, self.residents, proves=False, observer=self)
        self.run: Callable[..., Any] | None = None
        self.must_hold_less = False
        self.holds_least = False
        self._fresh = False
        self._grows = self._grew = 0  # held by others when backward starts; as the plan knows it
        self._calls: list[set[int]] = []

    def __call__(self, *args: Any) -> Any:
        self.step.see(args)
        plan, fresh = self.session.plan, self._fresh
        self._fresh = False
        if plan is not None and not fresh:
            more = max(0, self.residents(args) - plan.resident_bytes)
            budget = self.step.options.budget.bytes
            if self.must_hold_less or (budget is not None and plan.peak_bytes + more > budget):
                self.compile(args)
                self._fresh = False
        assert self.run is not None
        return self.run(*args)

    def residents(self, inputs: Sequence[Any]) -> int:
        """Bytes that a call with these inputs finds held by itself and by the others."""
        own = count_residents(torch.nn.Module(), list(inputs)).total
        others = self.step.alive(without=self.step.see(inputs))
        return own + others + self._grows

    def compile(self, inputs: Sequence[Any]) -> None:
        """Plan with what is held now.

        Raises
        ------
        InfeasibleBudget
            Too little is left, and no other graph of the step can hold less.
        """
        self.must_hold_less, self._fresh, self._grew = False, True, self._grows
        try:
            self.run = self.session.backend(self.graph, inputs)
            return
        except InfeasibleBudget as error:
            least, budget = error.minimum_bytes, error.budget_bytes
            others = [p for p in self.step.parts if p is not self and not p.holds_least]
            squeezed = self.session.margin.reserve_bytes
            if least is None or self.step.options.budget.bytes is None:
                raise
            if squeezed >= least - budget > 0:
                # Asked to hold less than it can: as little as it can.
                self.holds_least, self.session.margin.reserve_bytes = (
                    True,
                    squeezed - (least - budget),
                )
            elif not others:
                raise
            else:
                self._ask(others, least - budget)
        free = self.session.options
        allowed = free if self.holds_least else replace(free, budget=Budget(bytes=least))
        self.session.options = allowed
        try:
            self.run = self.session.backend(self.graph, inputs)
        finally:
            self.session.options = free

    def _ask(self, others: list[Part], missing: int) -> None:
        for part in others:
            part.session.margin.reserve_bytes += missing
            part.must_hold_less = True
        warnings.warn(
            f"fxmem: the graphs of this step leave its last one {missing} bytes too few; this step "
            "takes that much over its budget, and the others keep less from the next one on.",
            BudgetWarning,
            stacklevel=2,
        )

    def forward_made(self, values: Iterable[Any]) -> None:
        """Called with all that a forward part returns and keeps."""
        alive = self.step._seen
        self._calls = [call for call in self._calls if call & alive.keys()]
        self._calls.append(self.step.see(values))

    def backward_starts(self) -> None:
        """Called before each backward part: gradients of later graphs are there by now."""
        own = self._calls.pop() if self._calls else set()
        plan = self.session.plan
        if plan is not None:
            held = self.step.alive(without=own)
            self._grows = max(self._grows, self._grew + held - plan.resident_bytes)
