"""Logging as torch does it: ``TORCH_LOGS="+fxmem"``, and artefacts for tlparse.

Without that, `logging`'s own rules hold for the logger ``"fxmem"``; by default it is silent.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from functools import partial

from torch._logging import _internal, trace_structured  # private; same in 2.11 to 2.14

from .files.plan_file import to_row
from .passes.split import SplitStep
from .plan import Plan

log = logging.getLogger("fxmem")

# What tlparse need not repeat: curves and pictures, which `Plan.save` writes.
_BULKY = {"timeline", "picture", "pool"}


def register() -> None:
    """Make ``TORCH_LOGS`` know the name ``fxmem``."""
    log.addHandler(logging.NullHandler())
    _internal.register_log("fxmem", ["fxmem"])
    if "fxmem" in os.environ.get("TORCH_LOGS", ""):
        # torch read the variable when it was imported, and did not know the name then.
        _internal._init_logs()


def tell_plan(plan: Plan, graphs: SplitStep) -> None:
    """Log one plan, and hand it and its graphs to ``TORCH_TRACE``."""
    log.info("planned\n%s", plan.summary())
    for name, decision in plan.decisions.items():
        log.debug("%s: %s, %d bytes", name, decision, plan.value_bytes[name])

    def row() -> str:
        return json.dumps({k: v for k, v in to_row(plan).items() if k not in _BULKY})

    _artifact("fxmem_plan", "json", row)
    for part in ("forward", "backward"):
        module = getattr(graphs, part)

        _artifact(
            f"fxmem_{part}_graph", "string", partial(module.print_readable, print_output=False)
        )


def _artifact(name: str, encoding: str, payload: Callable[[], str]) -> None:
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": encoding},
        payload_fn=payload,
        expect_trace_id=False,  # a comparison plans outside of any compilation
    )
