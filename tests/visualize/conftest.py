"""A small plan, made by hand, and one of a real module."""

from __future__ import annotations

import pytest
import torch

import fxmem
from fxmem import Keep, Plan, Recompute
from fxmem.plan import CATEGORIES, Moment
from tests.modules import Blocks
from tests.visualize.browser import open_browser

MIB = 2**20


def moment(name: str, phase: str, start: float, **held: int) -> Moment:
    counts = tuple(held.get(c, 0) * MIB for c in CATEGORIES)
    return Moment(name, phase, "recomputed" in held, start, 0.001, counts)


TIMELINE = (
    moment("embedding", "forward", 0.000, resident=40, temporary=5),
    moment("addmm", "forward", 0.001, resident=40, kept=30, workspace=2),
    moment("gelu", "forward", 0.002, resident=40, kept=30, temporary=20),
    moment("gelu", "backward", 0.003, resident=40, kept=30, recomputed=20, temporary=3),
    moment("mm_1", "backward", 0.004, resident=40, kept=10, gradients=12),
)


@pytest.fixture
def plan() -> Plan:
    return Plan(
        budget_bytes=100 * MIB,
        peak_bytes=93 * MIB,
        resident_bytes=40 * MIB,
        baseline_peak_bytes=160 * MIB,
        seconds=0.004,
        baseline_seconds=0.0035,
        lower_bound_seconds=0.0039,
        status="feasible",
        solver="auto",
        sequence=("embedding", "addmm", "gelu", "turn", "gelu", "mm_1"),
        decisions={"addmm": Keep(), "gelu": Recompute()},
        value_bytes={"addmm": 30 * MIB, "gelu": 20 * MIB},
        timeline=TIMELINE,
        graph_hash="0",
    )


@pytest.fixture(scope="session")
def traced() -> Plan:
    """Three blocks under four fifths of their memory."""
    module, x = Blocks(), torch.randn(256, 16, requires_grad=True)
    return fxmem.optimize(module, 0.8, (x,), optimizer="adamw", time_limit=0.5).plan


@pytest.fixture(scope="session")
def browser():
    with open_browser() as found:
        yield found
