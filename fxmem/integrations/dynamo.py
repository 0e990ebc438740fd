"""``torch.compile(model, backend="fxmem", options={"budget": "6GiB"})``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..budget import Budget
from ..costs import MeasuredCosts
from ..errors import FxmemError
from ..planning import Options
from .shapes import BySizes, has_open_sizes
from .step import StepBudget

# By the identity of the options, which are kept so that no other object takes their place.
_STEPS: dict[int, tuple[Mapping[str, Any] | None, StepBudget]] = {}

_MOST_STEPS = 64

_KNOWN = {"budget", "solver", "time_limit", "seed", "cache"}


def fxmem_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Dynamo's entry point: plan one captured graph under ``options["budget"]``.

    Parameters
    ----------
    graph, example_inputs
        As Dynamo captured them; parameters and buffers are among the inputs.
    options : mapping, optional
        ``budget`` (none means no limit), ``solver``, ``time_limit``, ``seed``, ``cache``.
    mode : str, optional
        torch's own presets do not apply; anything but None is refused.

    Notes
    -----
    The budget is for all the graphs of a step together (see `step`): from the second step on it
    holds, or `InfeasibleBudget` is raised; the first may pass it, with a `BudgetWarning`, for no
    graph knows then what comes after it. Optimizer state and what lies outside the graphs are not
    seen from here, and a plan is not proved by a run of its own: `fxmem.optimize` does all that.
    Sizes that Dynamo leaves open (a second batch size, `mark_dynamic`) get a plan for each set
    of them that comes (see `shapes`).
    """
    chosen = dict(options or {})
    if unknown := set(chosen) - _KNOWN:
        raise FxmemError(
            f"unknown options {', '.join(sorted(unknown))}; known: {', '.join(sorted(_KNOWN))}."
        )
    if mode is not None:
        raise FxmemError(f"mode={mode!r} does not apply to the fxmem backend; leave it out.")
    tensors = [v for v in example_inputs if isinstance(v, torch.Tensor)]
    device = next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))
    planning = Options(
        budget=Budget.parse(chosen.get("budget")),
        costs=MeasuredCosts(device, cache=chosen.get("cache", True)),
        solver=chosen.get("solver", "auto"),
        time_limit=chosen.get("time_limit", 30.0),
        seed=chosen.get("seed", 0),
        cache=chosen.get("cache", True),
    )

    # One callable compiled by `torch.compile` hands the same options on with each of its graphs.
    step = _STEPS.get(id(options)) if options is not None else None
    if step is None or step[0] is not options:
        step = (options, StepBudget(planning))
        while len(_STEPS) >= _MOST_STEPS:
            del _STEPS[next(iter(_STEPS))]
        _STEPS[id(options)] = step
    if has_open_sizes(example_inputs):
        return BySizes(graph, step[1].add)
    return step[1].add(graph, example_inputs)
