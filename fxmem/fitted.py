"""What `optimize` returns: torch's own optimised module, with plans behind it."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
from torch._dynamo import exc as dynamo_exc
from torch._dynamo.eval_frame import OptimizedModule  # constructor same in 2.11 to 2.15
from torch.utils._pytree import tree_leaves

from .allocator import device_peaks, record
from .errors import FxmemError, TraceError
from .plan import Plan
from .report import Report
from .residents import gradient_bytes
from .session import PlanAnew, Session

# A plan that measures over budget is made anew with the excess held back; twice is rare.
_MOST_PLANS = 4

# Sets of plans, by the bytes of gradients that are there when a step starts.
_MOST_CONTEXTS = 4

# Dynamo gives up on a class's forward after 8 shapes or modules by default; each is a plan here.
_MOST_PLANS_OF_A_CLASS = 1024

# A line in a log need not end a graph. The name of the option changed after 2.11.
_IGNORED_LOGGING = (
    "ignore_logging_functions"
    if hasattr(dynamo_config, "ignore_logging_functions")
    else "ignore_logger_methods"
)
_LOGGING = "debug info warning error exception critical log info_once warning_once warning_advice"

_WITHOUT_CHECKS: dict[str, Any] = {
    name: False for name in ("check_custom_op_aliasing",) if hasattr(functorch_config, name)
}

# How `mark_dynamic` and its like leave marks on a tensor; one says that there are others.
_MARKS = re.compile(
    r"_dynamo_\w+_(indices|range|bounds)|_dynamo_(hint_overrides|shape_ids)|_has_dynamo_dim_marking"
)

ExampleInputs = tuple[Any, ...] | Mapping[str, Any]


class FittedModule(OptimizedModule):
    """A module that trains inside its budget: ``.plan``, ``.report()``, else as it was."""

    @property
    def plan(self) -> Plan | None:
        """The plan in use; None before the first call."""
        return self._session.plan

    def report(self) -> Report:
        """Plan and measurement side by side."""
        return Report(tuple((s.plan, s.measured) for s in self._session.steps))

    def learn(self, step: Callable[[], Any]) -> int:
        """Run one real training step of the caller's and plan anew if it passes the budget.

        For a loss outside the module: what it takes between forward and backward is the
        caller's own and can only be estimated when the plan is made.

        Parameters
        ----------
        step : callable
            Runs forward, loss and backward of this module once, from no gradients.

        Returns
        -------
        int
            Peak bytes of the step, residents included; the sum over devices where there are
            several.
        """
        session, devices = self._session, len(self._session.options.devices)
        peaks = device_peaks(step, devices) if devices else (record(step).peak,)
        current = session.current
        if current is None:
            raise FxmemError("the step did not call this module, so there is nothing to learn.")
        session.learn(current, peaks)
        return current.plan.resident_bytes + sum(peaks)

    @property
    def _session(self) -> Session:
        return self.__dict__["_fxmem_session"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # One thread at a time: which plan is in use, and whether it is a rehearsal, is the
        # module's state. Backward passes need no turn.
        with self._session.lock:
            self._session.arguments = tree_leaves((args, kwargs))
            try:
                with _fixed_sizes(self._session.arguments):
                    for _ in range(_MOST_PLANS):
                        self._choose_context()
                        with contextlib.suppress(PlanAnew):
                            return self._call(*args, **kwargs)
            finally:
                self._session.arguments = []
        raise FxmemError(
            f"the step measured over budget with {_MOST_PLANS} plans in a row; the allocator "
            "takes more than the plan predicts. Give a larger budget, and report this model."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> FittedModule:
        """A copy of the module, with the same options and plans of its own."""
        module = copy.deepcopy(self._orig_mod, memo)
        return fit(module, self._session.anew(module))

    def __reduce__(self) -> tuple[Any, ...]:
        """Saved as a whole: the module and the options; it is planned again once loaded."""
        return fit, (self._orig_mod, self._session)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        limit = _MOST_PLANS_OF_A_CLASS
        try:
            with (
                dynamo_config.patch(recompile_limit=limit, accumulated_recompile_limit=limit),
                dynamo_config.patch({_IGNORED_LOGGING: _logging_methods()}),
                # A dispatch mode on the first call alone, which would take bytes of its own.
                functorch_config.patch(_WITHOUT_CHECKS),
            ):
                return super().__call__(*args, **kwargs)
        except dynamo_exc.BackendCompilerFailed as error:
            if isinstance(error.inner_exception, FxmemError | PlanAnew):
                raise error.inner_exception.with_traceback(None) from None
            raise
        except dynamo_exc.TorchDynamoException as error:
            raise TraceError(
                f"torch.compile could not capture the module as one graph. {error}\n"
                "Move what it names out of the forward, or train that part without fxmem."
            ) from error

    def _choose_context(self) -> None:
        """Use the plans for the gradients at hand.

        Gradients that exist when a step starts (accumulation, ``set_to_none=False``) are held
        throughout it, which leaves the plan less; such steps have plans of their own.
        """
        contexts: dict[int, Any] = self.__dict__["_fxmem_contexts"]
        if self._session.stale:
            self._session.stale = False
            contexts.clear()
        held = gradient_bytes(self._orig_mod)
        if held not in contexts and len(contexts) >= _MOST_CONTEXTS:
            # A plan that leaves room for more gradients holds with fewer.
            held = min((h for h in contexts if h >= held), default=held)
        if held not in contexts:
            contexts[held] = _compile(self._orig_mod, self._session).dynamo_ctx
        if self.dynamo_ctx is not contexts[held]:
            self.dynamo_ctx = contexts[held]
            self._initialize()

    def rehearse(self, example_inputs: ExampleInputs) -> None:
        """Make the plan for ``example_inputs`` without an effect on the module."""
        with self._session.lock:
            self._session.rehearsing = True
            try:
                with torch.enable_grad():
                    if isinstance(example_inputs, Mapping):
                        self(**example_inputs)
                    else:
                        self(*example_inputs)
            finally:
                self._session.rehearsing = False


def fit(model: torch.nn.Module, session: Session) -> FittedModule:
    """Wrap ``model`` so that its calls are captured, planned and run by ``session``."""
    compiled = _compile(model, session)
    object.__setattr__(compiled, "__class__", FittedModule)
    # Past OptimizedModule.__setattr__, which would hand these to the user's module.
    compiled.__dict__["_fxmem_session"] = session
    compiled.__dict__["_fxmem_contexts"] = {}
    return compiled


@contextlib.contextmanager
def _fixed_sizes(arguments: Sequence[Any]) -> Iterator[None]:
    """Set `mark_dynamic`'s marks aside: each set of sizes has a plan of its own."""
    set_aside = [
        (tensor, name, tensor.__dict__.pop(name))
        for tensor in arguments
        if isinstance(tensor, torch.Tensor)
        for name in list(tensor.__dict__)
        if _MARKS.fullmatch(name)
    ]
    try:
        yield
    finally:
        for tensor, name, mark in set_aside:
            setattr(tensor, name, mark)


class _Functions(dict[Any, None]):
    """To be looked into as a set would be, and with nothing in it for JSON.

    Dynamo 2.11 writes its configuration to its metrics, sorted, and functions have no order.
    """

    def items(self) -> Any:
        """None."""
        return ()


def _logging_methods() -> _Functions:
    """Methods of loggers, those that Transformers adds included, and what the user ignores."""
    added = {getattr(logging.Logger, name, None) for name in _LOGGING.split()} - {None}
    return _Functions(dict.fromkeys([*added, *getattr(dynamo_config, _IGNORED_LOGGING)]))


def _compile(model: torch.nn.Module, session: Session) -> Any:
    def fxmem_backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        return session.backend(graph, inputs)

    # Each function is a backend that Dynamo has not seen, so that the module is traced anew.
    # What `torch.compile` itself calls: Lightning replaces that with one that leaves the backend
    # among the attributes of the user's module, which then could not be saved.
    return torch._dynamo.optimize(fxmem_backend, nopython=True, dynamic=False)(model)
