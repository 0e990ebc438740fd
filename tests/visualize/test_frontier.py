"""The frontier: one line a solver that found a plan."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch

import fxmem
from tests.modules import Outside

pytest.importorskip("matplotlib")


def compared(budgets, solvers, **more) -> fxmem.Comparison:
    x = torch.randn(32, 64)
    return fxmem.compare(Outside(), budgets, (x,), solvers, time_limit=1, **more)


@pytest.mark.parametrize("measured", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_solver_that_found_a_plan_is_named(tmp_path, measured):
    found = compared([None], ["auto", "sqrt", "none"], measure=measured)
    found.plot(tmp_path / "frontier.svg")
    text = (tmp_path / "frontier.svg").read_text()
    ElementTree.fromstring(text)
    for solver in ("auto", "sqrt", "none"):
        assert f">{solver}<" in text
    assert ("(measured)" in text) is measured
    found.plot(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_nothing_found_is_nothing_to_draw(tmp_path):
    found = compared(["1KiB"], ["auto"])
    with pytest.raises(fxmem.FxmemError, match="nothing to draw"):
        found.plot(tmp_path / "frontier.svg")
    assert not list(tmp_path.iterdir())
