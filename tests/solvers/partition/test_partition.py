"""The partition solver is exact, and its plans are what the schedule's own list of actions says."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.solvers.partition import (
    Device,
    Item,
    Option,
    PartitionProblem,
    PartitionSolution,
    StagePlan,
    Tie,
    check,
    partition,
)
from fxmem.solvers.partition.frontier import Frontiers
from fxmem.solvers.partition.problem import link_seconds
from fxmem.solvers.partition.simulate import compiled, step_seconds
from tests.clock import within


def random_problem(seed: int, most_items: int = 12, most_devices: int = 4) -> PartitionProblem:
    """Numbers in eighths, so that their sums are exact in any order."""
    draw = random.Random(seed)
    count, ranks = draw.randint(1, most_items), draw.randint(1, most_devices)

    def item() -> Item:
        kept = draw.randint(1, 40)
        lean = Option(draw.randint(1, 16) / 8, draw.randint(0, kept), draw.randint(0, 40))
        backward = draw.randint(0, 32)
        times = draw.randint(0, 16) / 8, backward / 8
        options = (Option(0.0, kept, draw.randint(0, 8)), lean)[: draw.randint(1, 2)]
        return Item(*times, draw.randint(0, 10), options, draw.randint(0, backward) / 8)

    kinds = [
        Device(draw.randint(60, 240), draw.choice((1.0, 2.0)), draw.choice((8.0, 64.0)), 0.125)
        for _ in range(2)
    ]
    ties = (Tie((0, count - 1), draw.randint(0, 30), 8),) if draw.random() < 0.5 else ()
    return PartitionProblem(
        tuple(item() for _ in range(count)),
        tuple(draw.randint(0, 16) for _ in range(count - 1)),
        tuple(draw.choice(kinds) for _ in range(ranks)),
        ties,
    )


def brute(
    problem: PartitionProblem, schedule: str, microbatches: int, ordered: bool = False
) -> float:
    """The shortest step over all cuts, orders of devices and choices of options."""
    ranks, count, best = len(problem.devices), len(problem.items), inf
    graph = compiled(schedule, ranks, microbatches, 1)
    held = {
        "gpipe": lambda s: microbatches,
        "1f1b": lambda s: min(ranks - s, microbatches),
        "zero-bubble": lambda s: min(ranks, microbatches),
    }[schedule]

    @cache
    def seconds(device: Device, s: int, start: int, stop: int) -> np.ndarray | None:
        items = problem.items[start:stop]
        entry, leave = problem.entry(start), problem.entry(stop)
        fixed = problem.resident(start, stop) + entry + leave
        extras = [
            sum(o.extra for o in choice)
            for choice in product(*(item.options for item in items))
            if fixed + held(s) * (entry + sum(o.kept for o in choice)) + max(o.peak for o in choice)
            <= device.memory
        ]
        if not extras:
            return None
        whole = sum(i.backward for i in items) + min(extras)
        weight = sum(i.weight for i in items)
        times = [sum(i.forward for i in items), whole, whole - weight, weight]
        return np.array(times) / device.speed

    for cuts in combinations(range(1, count), ranks - 1):
        bounds = [0, *cuts, count]
        for order in [problem.devices] if ordered else set(permutations(problem.devices)):
            stages = [seconds(order[s], s, bounds[s], bounds[s + 1]) for s in range(ranks)]
            if any(stage is None for stage in stages):
                continue
            links = [
                link_seconds(order[s], order[s + 1], problem.entry(cuts[s]))
                for s in range(ranks - 1)
            ]
            step = step_seconds(graph, np.array(stages).T.copy(), np.array(links, float))
            for tie in problem.ties:
                holders = [s for s in range(ranks) if set(tie.items) & set(_range(bounds, s))]
                first, *others = holders
                step += 2 * sum(link_seconds(order[first], order[o], tie.bytes) for o in others)
            best = min(best, step)
    return best if count >= ranks else inf


def _range(bounds: list[int], s: int) -> range:
    return range(bounds[s], bounds[s + 1])


def assert_exact(
    problem: PartitionProblem, schedule: str, microbatches: int, ordered: bool = False
) -> PartitionSolution:
    found = partition(problem, None, schedule, microbatches, ordered=ordered)
    wanted = brute(problem, schedule, microbatches, ordered)
    if wanted == inf:
        assert found.status == "infeasible" and found.stage_plans == ()
        return found
    assert found.status == "optimal"
    assert found.step_seconds == pytest.approx(wanted, rel=1e-12)
    assert found.lower_bound == found.step_seconds and found.gap == 0
    seen = check(problem, found)
    assert (seen.step_seconds, seen.bubble) == (found.step_seconds, found.bubble)
    assert seen.peaks == tuple(stage.peak for stage in found.stage_plans)
    for stage in found.stage_plans:
        assert stage.peak <= problem.devices[stage.device].memory
    return found


@pytest.mark.parametrize("part", range(4))
def test_200_random_chains_against_brute_force(part: int) -> None:
    schedules = ("1f1b", "gpipe", "1f1b", "zero-bubble")
    found = [
        assert_exact(random_problem(seed), schedules[part], 1 + seed % 8)
        for seed in range(part * 50, part * 50 + 50)
    ]
    shapes = [(len(f.stage_plans), any(any(g.options) for g in f.stage_plans)) for f in found]
    for recomputes in (False, True):
        assert any(count >= 3 and some == recomputes for count, some in shapes)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from(("1f1b", "gpipe", "zero-bubble")), st.integers(1, 6))
def test_exact_on_any_small_chain(seed: int, schedule: str, microbatches: int) -> None:
    assert_exact(random_problem(seed, 6, 3), schedule, microbatches)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_devices_in_the_order_given(schedule: str) -> None:
    found = [
        assert_exact(random_problem(seed, 8), schedule, 1 + seed % 6, ordered=True)
        for seed in range(60)
    ]
    assert sum(bool(f.stage_plans) for f in found) > 20
    for f in found:
        assert [g.device for g in f.stage_plans] == list(range(len(f.stage_plans)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
def test_interleaved_plans_hold_their_budgets(seed: int, groups: int, chunks: int) -> None:
    problem = random_problem(seed, 8, 3)
    microbatches = groups * len(problem.devices)
    found = partition(problem, None, "interleaved", microbatches, 1.0, chunks)
    if found.stage_plans:
        seen = check(problem, found)
        assert seen.step_seconds == found.step_seconds >= found.lower_bound
        for peak, stage in zip(seen.peaks, found.stage_plans, strict=False):
            assert stage.peak == peak <= problem.devices[stage.device].memory


def joint_case() -> PartitionProblem:
    """Early layers keep much and recompute cheaply; the late ones are slow."""
    early = Item(1.0, 2.0, 0, (Option(0.0, 40), Option(0.25, 4, 36)))
    late = Item(2.0, 4.0, 0, (Option(0.0, 10), Option(2.0, 2, 8)))
    return PartitionProblem((early,) * 8 + (late,) * 4, (2,) * 11, (Device(420),) * 2)


def separately(problem: PartitionProblem, microbatches: int) -> PartitionSolution:
    """Cut where everything kept fits best, then recompute only what each stage must."""
    kept_all = replace(
        problem, items=tuple(replace(i, options=i.options[:1]) for i in problem.items)
    )
    return partition(kept_all, None, "1f1b", microbatches)


def test_joint_beats_separate() -> None:
    """Cut for what fits without recomputation: the plan is a tenth slower, in the replay too."""
    problem = joint_case()
    joint, apart = partition(problem, None, "1f1b", 8), separately(problem, 8)
    assert joint.status == apart.status == "optimal"
    assert apart.step_seconds >= 1.10 * joint.step_seconds
    assert check(problem, apart).step_seconds >= 1.10 * check(problem, joint).step_seconds


def test_a_cut_blind_to_memory_is_slower_after_recomputation() -> None:
    """Cut for time alone, recomputed afterwards within the budget: a tenth slower again."""
    dear = Item(1.0, 2.0, 0, (Option(0.0, 60), Option(3.0, 4, 56)))
    free = Item(1.0, 2.0, 0, (Option(0.0, 4),))
    problem = PartitionProblem((dear,) * 6 + (free,) * 6, (1,) * 11, (Device(500),) * 2)
    rich = partition(problem, [10**6] * 2, "1f1b", 8)
    joint = partition(problem, None, "1f1b", 8)
    after = min(_recomputed(problem, rich.cuts[0], choice) for choice in product((0, 1), repeat=6))
    assert inf > after >= 1.10 * joint.step_seconds
    assert check(problem, joint).step_seconds == joint.step_seconds


def _recomputed(problem: PartitionProblem, cut: int, choice: tuple[int, ...]) -> float:
    options = (*choice, *(0,) * 6)
    stages = (
        StagePlan(0, 0, cut, options[:cut], 0.0, 0.0, 0, 0),
        StagePlan(1, cut, 12, options[cut:], 0.0, 0.0, 0, 0),
    )
    seen = check(problem, PartitionSolution("feasible", stages, 0.0, 0.0, 0.0, "1f1b", 8))
    fits = all(p <= d.memory for p, d in zip(seen.peaks, problem.devices, strict=True))
    return seen.step_seconds if fits else inf


def test_the_slower_device_takes_less_and_the_smaller_one_recomputes() -> None:
    item = Item(1.0, 2.0, 10, (Option(0.0, 20), Option(1.0, 2, 18)))
    slow, small = Device(1000, speed=0.5), Device(80, speed=1.0)
    found = partition(PartitionProblem((item,) * 6, (1,) * 5, (slow, small)), None, "1f1b", 8)
    by_device = {stage.device: stage for stage in found.stage_plans}
    assert found.status == "optimal"
    assert by_device[0].stop - by_device[0].start < by_device[1].stop - by_device[1].start
    assert any(by_device[1].options) and not any(by_device[0].options)


@pytest.mark.slow
def test_96_layers_on_64_devices() -> None:
    options = (Option(0, 34, 4), Option(0.6, 10, 30), Option(1.0, 2, 34))
    block = Item(1, 2, 24, options, 1.0)
    ends = Item(0.2, 0.1, 20, (Option(0, 2, 3),)), Item(0.5, 1, 20, (Option(0, 3, 20),))
    items = (ends[0], *(block,) * 96, ends[1])
    devices = (Device(1500, 1, 200, 0.001),) * 64
    problem = PartitionProblem(items, (2,) * 97, devices, (Tie((0, 97), 30, 10),))
    found = within(60, lambda: partition(problem, None, "1f1b", 64, time_limit=12.0), tries=2)
    assert len(found.stage_plans) == 64 and 0 <= found.gap < 0.15
    assert check(problem, found).step_seconds == found.step_seconds
    assert max(stage.peak for stage in found.stage_plans) <= 1500


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_of_equal_stages(schedule: str) -> None:
    """(p - 1) / (m + p - 1): Huang et al. 2019, section 2.3; the same for 1F1B."""
    problem = PartitionProblem((Item(1, 2, 0, (Option(0, 1),)),) * 4, (0,) * 3, (Device(99),) * 4)
    found = partition(problem, None, schedule, 8)
    assert found.step_seconds == 3 * (8 + 3)
    assert found.bubble == pytest.approx(3 / 11)


def test_thinned_frontiers_bound_from_both_sides() -> None:
    draw = random.Random(3)
    items = tuple(
        Item(1, 1, 0, tuple(Option(draw.random(), draw.randint(0, 99)) for _ in range(4)))
        for _ in range(6)
    )
    problem = PartitionProblem(items, (0,) * 5, (Device(1),))
    exact = Frontiers(problem, width=10**6)
    thin, low = Frontiers(problem, width=8), Frontiers(problem, True, width=8)
    for room in range(120, 400, 40):
        times = []
        for frontiers in (low, exact, thin):
            position = frontiers.fastest(0, 6, 1, room)
            times.append(inf if position is None else frontiers.of(0, 6).extra[position])
        assert times == sorted(times)
    assert thin.thinned and not exact.thinned
    assert len(thin.of(0, 6).extra) == 8
    choice = thin.choice(0, 6, 3)
    assert (
        sum(i.options[o].kept for i, o in zip(items, choice, strict=True))
        == (thin.of(0, 6).kept[3])
    )


def test_faults_are_found() -> None:
    item = Item(1, 1, 1, (Option(0, 1),))
    problem = PartitionProblem((item,) * 3, (1, 1), (Device(9),) * 2)
    found = partition(problem)
    first, second = found.stage_plans
    for stages in (
        (first,),
        (second, first),
        (replace(first, device=1), second),
        (first, replace(second, options=())),
    ):
        with pytest.raises(ValueError, match=r"stage|chain|device|option"):
            check(problem, replace(found, stage_plans=stages))
    assert partition(problem, {0: 1, 1: 1}).status == "infeasible"
    assert partition(replace(problem, devices=(Device(9),) * 4)).status == "infeasible"
    with pytest.raises(ValueError, match="none of gpipe"):
        partition(problem, None, "2f2b")
    with pytest.raises(ValueError, match="crossing"):
        replace(problem, crossing=(1,))
    with pytest.raises(ValueError, match="option"):
        Item(1, 1, 1, ())
    with pytest.raises(ValueError, match="tie"):
        replace(problem, ties=(Tie((7,), 1),))
