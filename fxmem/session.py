"""One optimised module: its options, its plans, and the compiled steps behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NoReturn, Protocol

import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.fx as fx
from torch._dynamo.backends.common import aot_autograd  # stable from 2.11 to 2.15
from torch._functorch._aot_autograd.descriptors import PlainAOTInput  # private; since 2.9
from torch._guards import TracingContext

from . import inductor
from .allocator import is_profiled
from .margin import Margin
from .passes.agree import agree
from .passes.layout import lay_out_gradients, leaf_gradients, misplaced
from .placement import place_step, prove_step, run_graph
from .plan import Plan
from .planning import Options, PlannedStep
from .residents import Holder, share_residents
from .runtime.native import load as load_native
from .runtime.prove import Boxed
from .runtime.stand_ins import StandIns
from .stages.shard_plan import plan_shards
from .trace import refuse_unknown_sizes


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
    margin : Margin
        What is kept free of the budget.
    misplaced : set of int
        Inputs whose gradients come in other strides than the graph says.
    """

    options: Options
    residents: Callable[[Sequence[Any]], int]
    backend_name: str = "eager"
    proves: bool = True
    steps: list[PlannedStep] = field(default_factory=list)
    current: PlannedStep | None = None
    rehearsing: bool = False
    stale: bool = False
    margin: Margin = field(default_factory=Margin)
    misplaced: set[int] = field(default_factory=set)
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
            margin=Margin(self.margin.reserve_bytes),
            misplaced=set(self.misplaced),
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
        resident_bytes, kinds = self._count_residents([*example_inputs, *self.arguments])
        leaves = {i for i, v in enumerate(example_inputs) if _accumulates(v)}
        planned: list[PlannedStep] = []
        inputs_now = list(example_inputs)  # AOTAutograd keeps `partition`, which must not keep them

        def partition(
            joint: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int, **_more: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            refuse_unknown_sizes(joint)
            joint = joint if self.uses_inductor else agree(joint, self.options.costs)
            laid_out = lay_out_gradients(joint, leaves, self.misplaced)
            if self.options.devices:
                step = self._plan_shards(laid_out, num_fwd_outputs, resident_bytes, inputs_now)
            else:
                step = self._plan_step(laid_out, num_fwd_outputs, resident_bytes)
            step.plan = _with_residents(step.plan, kinds)
            step.leaf_gradients = leaf_gradients(laid_out, num_fwd_outputs, leaves)
            largest = max(self.options.plain_peak_bytes, step.plan.baseline_peak_bytes)
            self.options = replace(self.options, plain_peak_bytes=largest)
            planned.append(step)
            self.steps.append(step)
            self.current = step
            return step.graphs.forward, step.graphs.backward

        def forward(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            _allow_retained_graphs()
            return self._forward(module, self._run(module, inputs), planned[-1])

        def backward(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            return self._backward(self._run(module, inputs, is_backward=True), planned[-1])

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
            try:
                return compiler(graph, example_inputs)
            finally:
                inputs_now.clear()

    def _count_residents(self, arguments: Sequence[Any]) -> tuple[int, dict[str, int]]:
        """All bytes held throughout, and, where they are known, those of each kind."""
        if not isinstance(self.residents, Holder):
            return self.residents(arguments), {}
        counted = self.residents.count(arguments)
        return counted.total, asdict(counted)

    def _run(
        self, module: fx.GraphModule, inputs: Any, is_backward: bool = False
    ) -> Callable[..., Any]:
        """A function of a list that runs one graph, by the chosen backend."""
        if self.uses_inductor:
            return inductor.compile_graph(module, inputs, is_backward)
        return run_graph(module)

    def _forward(
        self, module: fx.GraphModule, run: Callable[..., Any], step: PlannedStep
    ) -> Callable[..., Any]:
        stand_ins = StandIns(module, step.written_inputs)

        def forward(args: list[Any]) -> Any:
            self.current = step
            # Processes that measure differently would wait for each other's collectives for ever.
            # While the user's own profiler runs there can be no second one; next time, then.
            proves = self.proves and not step.communicates
            if proves and step.measured is None and not is_profiled():
                self._prove(step, run, args)
            if self.rehearsing:
                return stand_ins(args)
            self._make_room(step)
            made = step.arena.forward(run, args) if step.arena else run(args)
            if self.observer is not None:
                self.observer.forward_made(made)
            return made

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    def _backward(self, run: Callable[..., Any], step: PlannedStep) -> Callable[..., Any]:
        step.run_backward = run

        def backward(args: list[Any]) -> Any:
            if self.observer is not None:
                self.current = step
                self.observer.backward_starts()
            return step.arena.backward(run, args) if step.arena else run(args)

        backward._boxed_call = True  # type: ignore[attr-defined]
        return backward

    def _make_room(self, step: PlannedStep) -> None:
        """Idle arenas of steps with other shapes are no part of this step's plan."""
        if step.plan.budget_bytes is not None:
            for other in self.steps:
                if other is not step and other.arena is not None:
                    other.arena.trim()

    def _prove(self, step: PlannedStep, forward: Boxed, args: list[Any]) -> None:
        """Run the step's graphs once, without effects, before the first real step."""
        self._make_room(step)
        pools = self.options.pool and step.device.type == "cpu"
        native = load_native() if pools else None
        recorded = prove_step(step, forward, args, native, by_operator=not self.uses_inductor)
        proof = recorded.proof
        others = misplaced(step.leaf_gradients, proof.gradient_strides) - self.misplaced
        if others:
            self.misplaced |= others
            self._give_up(step)
        self.learn(step, proof.device_peaks if step.plan.devices else (proof.peak_bytes,))
        if self.stale:
            raise PlanAnew
        if native is None:
            return
        over = place_step(step, forward, args, recorded, native)
        if over and self.margin.wants_another(over, step.plan):
            self._give_up(step)

    def _give_up(self, step: PlannedStep) -> NoReturn:
        """Plan the step anew, with what is known by now."""
        self.steps.remove(step)
        self.stale = True
        raise PlanAnew

    def _plan_step(
        self, joint: fx.GraphModule, forward_outputs: int, resident_bytes: int
    ) -> PlannedStep:
        return self.margin.plan_step(joint, forward_outputs, resident_bytes, self.options)

    def _plan_shards(
        self, joint: fx.GraphModule, forward_outputs: int, total: int, inputs: Sequence[Any]
    ) -> PlannedStep:
        """Plan over several devices; what no stage reads is held by the first."""
        number = {
            n.name: n.meta["desc"].idx
            for n in joint.graph.find_nodes(op="placeholder")
            if isinstance(n.meta.get("desc"), PlainAOTInput)
        }

        def residents(homes: Mapping[str, int]) -> list[int]:
            placed = [(inputs[i], homes[name]) for name, i in number.items() if name in homes]
            return share_residents(self.residents, total, placed)

        options = replace(self.options, reserve_bytes=self.margin.reserve_bytes)
        return plan_shards(joint, forward_outputs, residents, options)

    def learn(self, step: PlannedStep, peaks: Sequence[int]) -> None:
        """Compare each device's peak above the start with the plan; over budget: plan anew."""
        learn = self.margin.learn_devices if step.plan.devices else self.margin.learn
        self.stale |= learn(step, peaks)


def _with_residents(plan: Plan, kinds: Mapping[str, int]) -> Plan:
    if plan.picture is None:
        return plan
    return replace(plan, picture=replace(plan.picture, residents=dict(kinds)))


class PlanAnew(Exception):
    """The rehearsal of a plan says that another is wanted; never leaves fxmem."""


def _allow_retained_graphs() -> None:
    """Nothing is donated here, which AOTAutograd must be told in so many words.

    With donated buffers off while it compiles it leaves the list of them unset, and takes that
    for "some" when a graph is retained later (read in 2.13, `runtime_wrappers.py`).
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _accumulates(value: Any) -> bool:
    """Is this a leaf whose gradient autograd keeps?"""
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
