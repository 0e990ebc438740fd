"""The picture of the arena: every block is there, and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxmem
from fxmem.arena_plan import Request
from fxmem.errors import FxmemError
from fxmem.runtime import native
from fxmem.visualize.pool import KINDS, draw_pool, kind_of, max_live
from tests.cases import make

GRADIENT, SAVED, PART = KINDS


def request(start: int, end: int, size: int = 1) -> Request:
    return Request("a", "forward", size, start, end, 0)


def test_kinds() -> None:
    assert kind_of(request(6, 9), 5, 9) == GRADIENT
    assert kind_of(request(2, 7), 5, 9) == SAVED
    assert kind_of(request(2, 5), 5, 9) == PART
    assert kind_of(request(5, 7), 5, 9) == PART


def test_live_bytes() -> None:
    assert max_live([request(0, 2, 5), request(1, 3, 4), request(2, 4, 4)]) == 9
    assert max_live([]) == 0


@pytest.mark.skipif(native.load() is None, reason="no C++ compiler for the arena")
def test_picture(tmp_path: Path) -> None:
    torch._dynamo.reset()
    case = make("transformer")
    plan = fxmem.optimize(case.module, None, case.args).plan
    axes = draw_pool(plan).axes[0]
    drawn = sum(len(c.get_paths()) for c in axes.collections)
    assert drawn == sum(r.offset is not None for r in plan.pool.requests)
    assert [t.get_text().split(",")[0] for t in axes.get_legend().get_texts()] == list(KINDS)
    for suffix in (".png", ".svg"):
        plan.plot(tmp_path / f"pool{suffix}", kind="pool")
        assert (tmp_path / f"pool{suffix}").stat().st_size > 1000


def test_no_arena(tmp_path: Path) -> None:
    case = make("mlp")
    plan = fxmem.plan(case.module, None, case.args)
    with pytest.raises(FxmemError, match="no arena"):
        plan.plot(tmp_path / "pool.png", kind="pool")
