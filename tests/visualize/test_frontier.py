"""The picture of several solvers' plans."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fxmem import FxmemError
from fxmem.visualize import plot_frontier
from fxmem.visualize.frontier import curves_of, draw_frontier

pytest.importorskip("matplotlib")
MIB = 2**20


@dataclass(frozen=True)
class Row:
    solver: str
    peak_bytes: int
    seconds: float
    measured_peak_bytes: int | None = None
    measured_seconds: float | None = None


ROWS = (
    Row("auto", 90 * MIB, 0.010, 89 * MIB, 0.011),
    Row("auto", 70 * MIB, 0.012),
    Row("greedy", 90 * MIB, 0.015),
)


def test_a_curve_for_each_solver_by_peak():
    auto, greedy = curves_of(ROWS)
    assert auto.points == ((0.012, 70 * MIB), (0.010, 90 * MIB))
    assert auto.measured == ((0.011, 89 * MIB),)
    assert greedy.points == ((0.015, 90 * MIB),) and greedy.measured == ()


def test_curves_differ_in_colour_and_in_sign():
    curves = curves_of([Row(f"solver {i}", MIB, 1.0) for i in range(12)])
    assert len({(c.colour, c.sign) for c in curves}) == 12
    assert len({(c.colour, c.plotly_sign) for c in curves}) == 12


def test_lines_measured_points_and_the_baseline_are_drawn():
    axes = draw_frontier(curves_of(ROWS), (0.009, 160 * MIB)).axes[0]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn == {
        "auto": [[12.0, 70.0], [10.0, 90.0]],
        "auto, measured": [[11.0, 89.0]],
        "greedy": [[15.0, 90.0]],
        "everything kept, 160.0 MiB": [[9.0, 160.0]],
    }
    assert axes.get_xlabel() == "time of a step (ms)" and axes.get_ylabel() == "peak (MiB)"


def test_plans_themselves_are_points(plan, tmp_path):
    plot_frontier([plan], tmp_path / "all.svg")
    assert "auto" in (tmp_path / "all.svg").read_text()


def test_nothing_to_compare_is_refused(tmp_path):
    with pytest.raises(FxmemError, match="no plan to compare"):
        plot_frontier([], tmp_path / "all.svg")
    assert list(tmp_path.iterdir()) == []
