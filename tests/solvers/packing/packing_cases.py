"""Random packing problems for the tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fxmem.solvers.packing import PackingProblem
from fxmem.solvers.packing.overlap import first_overlap


@st.composite
def problems(
    draw: st.DrawFn, most: int = 7, largest: int = 9, fixed: bool = True
) -> PackingProblem:
    """Small problems, some with an alignment and with fixed buffers."""
    count = draw(st.integers(1, most))
    lower = draw(st.lists(st.integers(0, 7), min_size=count, max_size=count))
    width = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    size = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    alignment = draw(st.sampled_from([1, 1, 2, 4]))
    upper = [low + w for low, w in zip(lower, width, strict=True)]
    given = [-1] * count
    if fixed and draw(st.booleans()):
        for i in range(count):
            given[i] = draw(st.sampled_from([-1, -1, 0, 1, 3])) * alignment
            given[i] = max(-1, given[i])
            held = [j for j in range(i + 1) if given[j] >= 0]
            if first_overlap(lower, upper, size, given, held):
                given[i] = -1
    return PackingProblem(lower, upper, size, alignment, given)


def least_height(problem: PackingProblem) -> int:
    """The lowest arena, by trying for each buffer in turn every offset that can matter."""
    order = sorted(
        (i for i in range(problem.count) if problem.fixed[i] == -1 and problem.size[i]),
        key=lambda i: -problem.size[i],
    )
    offset = list(problem.fixed)
    fixed = [i for i in range(problem.count) if offset[i] != -1]
    solid = [i for i in fixed if problem.size[i]]  # one without bytes is in nobody's way
    best = sum(problem.size) + problem.count * problem.alignment
    best += max((offset[i] for i in fixed), default=0)

    def place(k: int, height: int) -> None:
        nonlocal best
        if height >= best:
            return
        if k == len(order):
            best = height
            return
        i = order[k]
        for at in range(0, best - problem.size[i], problem.alignment):
            offset[i] = at
            near = [
                j
                for j in [*solid, *order[:k]]
                if problem.lower[j] < problem.upper[i] and problem.lower[i] < problem.upper[j]
            ]
            if all(
                at >= offset[j] + problem.size[j] or offset[j] >= at + problem.size[i] for j in near
            ):
                place(k + 1, max(height, at + problem.size[i]))
        offset[i] = -1

    place(0, max((offset[i] + problem.size[i] for i in fixed), default=0))
    return best


def uniform(count: int, seed: int, longest: int | None = None) -> PackingProblem:
    """Lives and sizes drawn evenly: hard for plain orders."""
    rng = np.random.default_rng(seed)
    lower = rng.integers(0, count, count)
    width = rng.integers(1, longest or max(2, count // 20), count)
    return PackingProblem(lower, lower + width, rng.integers(1, 1_000_000, count))


def training_step(count: int, seed: int) -> PackingProblem:
    """Forward makes a value at each step, two in five of them kept for their backward step."""
    rng = np.random.default_rng(seed)
    half = count // 2
    sizes = [64, 1024, 4096, 65536, 786432, 786432, 2359296, 3145728]
    lower = np.arange(count)
    upper = lower + rng.integers(2, 12, count)
    kept = (rng.random(count) < 0.4) & (lower < half)
    gradient = (rng.random(count) < 0.03) & (lower >= half)
    upper = np.where(kept, 2 * half - lower + rng.integers(0, 4, count), upper)
    upper = np.where(gradient, count + 12, upper)
    return PackingProblem(lower, np.maximum(upper, lower + 1), rng.choice(sizes, count), 64)
