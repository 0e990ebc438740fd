"""Pictures of memory over time: what they say, and that they refuse what they cannot do."""

from __future__ import annotations

import builtins
from dataclasses import replace

import pytest

from fxmem import FxmemError, MeasuredStep
from fxmem.plan import CATEGORIES
from fxmem.visualize import plot_plan, plot_steps
from fxmem.visualize.areas import COLOURS, LABELS, areas_of, live_at
from fxmem.visualize.canvas import STYLE
from fxmem.visualize.memory import draw_plan, draw_steps

pytest.importorskip("matplotlib")

MIB = 2**20


def measured(peak: int, pace: float = 1.0) -> MeasuredStep:
    held = (40, 70, peak, 60, 45)
    timeline = tuple((pace * 0.001 * i, b * MIB) for i, b in enumerate(held))
    return MeasuredStep(peak * MIB, 40 * MIB, pace * 0.005, timeline)


def texts(figure) -> str:
    (axes,) = figure.axes
    legend = axes.get_legend()
    found = [t.get_text() for t in axes.texts]
    found += [t.get_text() for t in legend.get_texts()] if legend else []
    found += [axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")]
    return "\n".join(found)


def overlaps(draw) -> list[tuple[str, str]]:
    """Pairs of drawn texts whose boxes meet."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    with mpl.rc_context(STYLE):
        figure = draw()
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    renderer = canvas.get_renderer()
    shown = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    boxes = [(t.get_text(), Text.get_window_extent(t, renderer)) for t in shown]
    return [
        (a, b)
        for i, (a, one) in enumerate(boxes)
        for b, other in boxes[i + 1 :]
        if one.overlaps(other)
    ]


def test_every_category_has_its_own_colour_and_label():
    assert set(COLOURS) == set(LABELS) == set(CATEGORIES)
    assert len(set(COLOURS.values())) == len(CATEGORIES)


def test_plan_says_budget_peak_turn_and_what_is_held(plan):
    text = texts(draw_plan(plan))
    assert "budget 100.0 MiB" in text
    assert "peak 93.0 MiB at gelu (backward)" in text
    assert "160.0 MiB with everything kept" in text
    assert "forward" in text and "backward" in text
    assert "kept for backward: 30.0 MiB" in text
    assert "recomputed: 20.0 MiB" in text
    assert "memory held (MiB)" in text
    assert "outputs" not in text  # nothing of it is ever held


def test_residents_are_told_apart_where_they_are_known(traced):
    areas = areas_of(traced)
    kinds = [a.name for a in areas if a.name.startswith("resident ")]
    assert kinds == ["resident parameters", "resident optimizer", "resident inputs"]
    for i, moment in enumerate(traced.timeline):
        assert sum(a.held[i] for a in areas) == moment.live_bytes
    assert "optimizer state: " in texts(draw_plan(traced))


def test_the_largest_values_at_the_peak_are_named(traced):
    peak = traced.timeline.index(traced.peak_moment())
    largest = live_at(traced, peak)
    assert [v.bytes for v in largest] == sorted((v.bytes for v in largest), reverse=True)
    held = sum(v.bytes for v in largest)
    moment = traced.timeline[peak]
    assert held == moment.live_bytes - moment.held[0] - moment.held[-1]
    assert f"{largest[0].name}: " in texts(draw_plan(traced)).split("largest values there")[1]


def test_what_was_measured_is_drawn_over_the_prediction(plan):
    figure = draw_plan(plan, measured(120))
    (curve,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert list(curve.get_ydata()) == [40, 70, 120, 60, 45]
    assert curve.get_xdata()[-1] == pytest.approx(5.0)  # ms, as long as the prediction
    assert figure.axes[0].get_ylim()[1] > 120
    assert "measured: peak 120.0 MiB" in texts(figure)
    assert "charged" not in texts(figure)


def test_what_was_charged_and_not_there_is_added_to_the_measured_curve(plan):
    step = replace(measured(80), resident_bytes=30 * MIB)
    figure = draw_plan(plan, step)
    (curve,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert list(curve.get_ydata()) == [50, 80, 90, 70, 55]
    assert "10.0 MiB\ncharged that were not there yet" in texts(figure)


def test_a_measured_step_without_a_curve_is_its_peak(plan):
    flat = replace(measured(90), timeline=((0.0, 90 * MIB),))
    heights = [list(line.get_ydata()) for line in draw_plan(plan, flat).axes[0].lines]
    assert [90.0, 90.0] in heights


def test_stacked_areas_reach_the_peak(plan):
    (axes,) = draw_plan(plan).axes
    top = max(c.get_datalim(axes.transData).y1 for c in axes.collections)
    assert top == pytest.approx(93)


def test_no_text_of_a_real_plan_overlaps(traced):
    assert overlaps(lambda: draw_plan(traced, measured(1))) == []


@pytest.mark.parametrize("budget", [None, 94 * MIB])
@pytest.mark.parametrize("at", [0, 3, 4])
def test_no_text_of_a_plan_overlaps(plan, budget, at):
    timeline = list(plan.timeline)
    timeline[at] = replace(timeline[at], held=tuple(b + 60 * MIB for b in timeline[at].held))
    highest = max(m.live_bytes for m in timeline)
    plan = replace(plan, timeline=tuple(timeline), peak_bytes=highest)
    budget = budget and budget + highest - 93 * MIB
    assert overlaps(lambda: draw_plan(replace(plan, budget_bytes=budget))) == []


def test_a_budget_far_above_is_named_without_squashing_the_picture(plan):
    figure = draw_plan(replace(plan, budget_bytes=4096 * MIB))
    assert "4.0 GiB, above this picture" in texts(figure)
    assert figure.axes[0].get_ylim()[1] < 130


def test_operators_are_counted_where_nothing_takes_time(plan):
    timeline = tuple(replace(m, start=0.0, seconds=0.0) for m in plan.timeline)
    figure = draw_plan(replace(plan, timeline=timeline))
    assert "operators run" in texts(figure)
    assert figure.axes[0].get_xlim() == (0, 5)


def test_an_empty_timeline_is_an_empty_picture(plan, tmp_path):
    plot_plan(replace(plan, timeline=()), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_large_steps_are_drawn_in_gib(plan):
    timeline = tuple(replace(m, held=tuple(b * 400 for b in m.held)) for m in plan.timeline)
    assert "memory held (GiB)" in texts(
        draw_plan(replace(plan, timeline=timeline, peak_bytes=37200 * MIB, budget_bytes=None))
    )


def test_suffix_chooses_the_format_and_files_repeat(plan, tmp_path):
    plan.plot(tmp_path / "a.svg")
    plan.plot(str(tmp_path / "b.SVG"))
    plan.plot(tmp_path / "a.png")
    svg = (tmp_path / "a.svg").read_text()
    assert "<svg" in svg and "budget 100.0 MiB" in svg
    assert svg == (tmp_path / "b.SVG").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_steps_are_drawn_with_peaks_and_budget():
    figure = draw_steps({"plain": measured(160), "fxmem": measured(79)}, budget=80 * MIB)
    text = texts(figure)
    assert "plain: peak 160.0 MiB" in text
    assert "fxmem: peak 79.0 MiB" in text
    assert "budget\n80.0 MiB" in text
    assert "held all along: parameters, optimizer state, inputs (40.0 MiB)" in text


@pytest.mark.parametrize("pace", [0.2, 3.0])
@pytest.mark.parametrize("peak", [160, 155, 79])
def test_no_text_of_steps_overlaps(pace, peak):
    steps = {"plain": measured(160), "fxmem": measured(peak, pace), "third": measured(81)}
    assert overlaps(lambda: draw_steps(steps, budget=80 * MIB)) == []


def test_a_step_without_a_timeline_is_drawn_as_its_peak(tmp_path):
    flat = MeasuredStep(90 * MIB, 30 * MIB, 0.1, ((0.0, 90 * MIB),))
    assert "cuda: peak 90.0 MiB" in texts(draw_steps({"cuda": flat}))
    plot_steps({"cuda": flat, "cpu": measured(100)}, tmp_path / "steps.png", budget=95 * MIB)
    assert (tmp_path / "steps.png").exists()


def test_what_cannot_be_drawn_is_refused(plan, tmp_path):
    with pytest.raises(FxmemError, match="'graph' is not known; give 'memory'"):
        plot_plan(plan, tmp_path / "a.png", kind="graph")
    with pytest.raises(FxmemError, match=r"end in \.svg, \.png"):
        plot_plan(plan, tmp_path / "a.bmp")
    with pytest.raises(FxmemError, match="no step to draw"):
        plot_steps({}, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_names_the_extra(plan, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FxmemError, match=r"pip install 'fxmem\[plot\]'"):
        plot_plan(plan, tmp_path / "a.png")
