"""One optimised module: its options, its plans, and the compiled steps behind it."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.fx as fx
from torch._dynamo.backends.common import aot_autograd  # stable from 2.11 to 2.15

from . import inductor
from .compile import boxed
from .errors import BudgetWarning
from .passes.layout import lay_out_gradients
from .pipeline import Options, PlannedStep, plan_step
from .plan import Plan
from .residents import Holder
from .runtime.prove import proved_peak

log = logging.getLogger("fxmem")


class Observer(Protocol):
    """Who is told as the steps of a session run."""

    def forward_made(self, values: Sequence[Any]) -> None:
        """All that a forward part returns and keeps."""

    def backward_starts(self) -> None:
        """A backward part is about to run."""


@dataclass
class Session:
    """State of one optimised module.

    Attributes
    ----------
    options : Options
    residents : callable
        Bytes that the step holds throughout, counted when a plan is made.
    backend_name : str
        ``"eager"`` or ``"inductor"``.
    proves : bool
        Is each plan run once, without effects, before it is trusted?
    observer : Observer, optional
    arguments : list
        Of the call at work.
    steps : list of PlannedStep
        One for each set of input shapes, newest last.
    """

    options: Options
    residents: Callable[[Sequence[Any]], int]
    backend_name: str = "eager"
    proves: bool = True
    steps: list[PlannedStep] = field(default_factory=list)
    current: PlannedStep | None = None
    rehearsing: bool = False
    reserve_bytes: int = 0
    stale: bool = False
    observer: Observer | None = None
    arguments: list[Any] = field(default_factory=list, repr=False)
    lock: Any = field(default_factory=threading.RLock, repr=False, compare=False)

    def anew(self, module: torch.nn.Module) -> Session:
        """The same options for another module, such as a copy; it has no plan yet."""
        residents = self.residents
        if isinstance(residents, Holder):
            residents = Holder(module, residents.optimizer)
        # What was learnt of one is learnt of the other.
        return Session(
            replace(self.options, progress=None),
            residents,
            self.backend_name,
            self.proves,
            reserve_bytes=self.reserve_bytes,
        )

    def __getstate__(self) -> dict[str, Any]:
        """What goes on disk: options, and neither compiled steps nor locks."""
        state = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "lock"}
        options = replace(self.options, progress=None)
        return {**state, "options": options, "steps": [], "current": None, "arguments": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())

    @property
    def uses_inductor(self) -> bool:
        """Are the graphs compiled further, or run operator by operator?"""
        return self.backend_name == "inductor"

    @property
    def plan(self) -> Plan | None:
        """The plan of the step that ran last, or that was made last."""
        return self.current.plan if self.current else None

    def backend(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Dynamo's backend: what it captured goes through AOTAutograd into our pipeline."""
        # Dynamo leaves out arguments that nothing reads; the caller holds them all the same.
        resident_bytes = self.residents([*example_inputs, *self.arguments])
        leaves = {i for i, v in enumerate(example_inputs) if _accumulates(v)}
        planned: list[PlannedStep] = []

        def partition(
            joint: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **_more: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            options = replace(self.options, reserve_bytes=self.reserve_bytes)
            laid_out = lay_out_gradients(joint, leaves)
            step = plan_step(laid_out, num_fwd_outputs, resident_bytes, options)
            planned.append(step)
            self.steps.append(step)
            self.current = step
            return step.graphs.forward, step.graphs.backward

        def forward(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            return self._forward(module, self._run(module, inputs), planned[-1])

        def backward(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            planned[-1].run_backward = self._run(module, inputs, is_backward=True)
            return self._backward(planned[-1].run_backward, planned[-1])

        compiler = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=self._run,
            partition_fn=partition,
            decompositions=inductor.decompositions() if self.uses_inductor else None,
        )
        # Donated buffers would forbid retain_graph=True; ours frees saved values by itself.
        # Without fallback_random AOTAutograd drops draws that nobody reads.
        with (
            functorch_config.patch(donated_buffer=False),
            inductor_config.patch(fallback_random=True),
        ):
            return compiler(graph, example_inputs)

    def _run(
        self, module: fx.GraphModule, inputs: Any, is_backward: bool = False
    ) -> Callable[..., Any]:
        """A function of a list that runs one graph, by the chosen backend."""
        if self.uses_inductor:
            return inductor.compile_graph(module, inputs, is_backward)
        return boxed(module)

    def _forward(
        self, module: fx.GraphModule, run: Callable[..., Any], step: PlannedStep
    ) -> Callable[..., Any]:
        shapes = [_value(v) for v in module.graph.output_node().args[0]]  # type: ignore[union-attr]

        def forward(args: list[Any]) -> Any:
            self.current = step
            # Processes that measure differently would wait for each other's collectives for ever.
            # While the user's own profiler runs there can be no second one; next time, then.
            proves = self.proves and not step.communicates
            if proves and step.measured is None and not torch.autograd._profiler_enabled():
                self._prove(step, run, args)
            if self.rehearsing:
                return _stand_ins(shapes, args, step.written_inputs)
            made = run(args)
            if self.observer is not None:
                self.observer.forward_made(made)
            return made

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    def _backward(self, run: Callable[..., Any], step: PlannedStep) -> Callable[..., Any]:
        if self.observer is None:
            return run
        observer = self.observer

        def backward(args: list[Any]) -> Any:
            self.current = step
            observer.backward_starts()
            return run(args)

        backward._boxed_call = True  # type: ignore[attr-defined]
        return backward

    def _prove(self, step: PlannedStep, forward: Callable[..., Any], args: list[Any]) -> None:
        """Run the step's graphs once, without effects, before the first real step."""
        peak = proved_peak(
            forward,
            step.run_backward or boxed(step.graphs.backward),
            args,
            step.forward_outputs,
            len(step.written_inputs),
            step.tangents,
            step.device,
        )
        self.learn(step, peak)
        if self.stale:
            raise OverBudget

    def learn(self, step: PlannedStep, peak_above_start: int) -> None:
        """Compare a measured step with its plan; over budget means a new plan."""
        plan = step.plan
        step.measured = max(step.measured or 0, plan.resident_bytes + peak_above_start)
        budget = plan.budget_bytes
        log.info("peak %d measured, %d predicted", step.measured, plan.peak_bytes)
        if budget is not None and step.measured > budget:
            # At least what the plan is short of: what it left free of the budget did not help.
            over, short = step.measured - budget, step.measured - plan.peak_bytes
            self.reserve_bytes = max(self.reserve_bytes + over, short)
            self.stale = True
            warnings.warn(
                f"fxmem: a step took {step.measured} bytes, {step.measured - budget} over its "
                "budget; it is planned anew with what was learnt before the next one runs.",
                BudgetWarning,
                stacklevel=2,
            )


class OverBudget(Exception):
    """The rehearsal of a plan measured over its budget; never leaves fxmem."""


def _accumulates(value: Any) -> bool:
    """Is this a leaf whose gradient autograd keeps?"""
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def _stand_ins(shapes: list[Any], args: list[Any], written: Sequence[int]) -> tuple[Any, ...]:
    """Outputs of the right shapes without running anything; mutated inputs keep their values."""
    made = []
    for position, shape in enumerate(shapes):
        if position < len(written):
            made.append(args[written[position]].clone())
        elif isinstance(shape, torch.Tensor):
            # One element stands for all: nothing of the step's size is allocated.
            one = torch.zeros((), dtype=shape.dtype, device=shape.device)
            made.append(one.expand(shape.shape))
        else:
            made.append(shape)
    args.clear()
    return tuple(made)
