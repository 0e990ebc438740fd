"""The numba kernels against `check`, on random problems and random changes."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from fxmem.solvers.remat import check, replay
from fxmem.solvers.remat.anneal import RECORD, anneal
from fxmem.solvers.remat.apply import do_delete, do_insert, do_move
from fxmem.solvers.remat.arrays import Arrays, flatten
from fxmem.solvers.remat.block import do_block, try_block
from fxmem.solvers.remat.evaluate import evaluate
from fxmem.solvers.remat.moves import try_delete, try_insert, try_move, window
from fxmem.solvers.remat.state import LENGTH, OVER, TIME, TURN, State, empty_state, load
from tests.solvers.remat.remat_cases import random_problem


@njit
def attempt(a, state, kind, v, p, place, out):  # type: ignore[no-untyped-def]
    """Try one change and make it if it is allowed; one function for Python, quick to compile."""
    if kind < 0.4:
        window(a, state, p, out)
        q = out[0] + int(place * (out[1] - out[0] + 1))
        if try_move(a, state, p, q, out):
            do_move(a, state, p, q, out)
    elif kind < 0.5:
        if try_block(a, state, v, p, 0.9, out):
            do_block(a, state, p, out)
    elif kind < 0.7:
        if not (a.op[v].rank >= 0 and state.runs[v, 0] >= p) and try_insert(a, state, v, p, out):
            do_insert(a, state, v, p, out)
    elif try_delete(a, state, p, out):
        do_delete(a, state, p, out)


def bytes_during(a: Arrays, state: State) -> list[int]:
    """Bytes of each step as the state has them."""
    step = state.step[: state.meta[LENGTH]]
    return (step["gap"] + a.op["extra"][step["seq"]] - step["saved"]).tolist()


# One test for all seeds: each process that runs one compiles every kernel.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 20))
def test_every_move_keeps_the_state_exact(seed: int) -> None:
    rng = random.Random(seed)
    # Blocks of several reruns take place in long schedules only.
    count = rng.randint(2, 14) if rng.random() < 2 / 3 else rng.randint(20, 50)
    problem, budget = random_problem(rng, count, turn=seed % 3 > 0), rng.randint(3, 15)
    a = flatten(problem)
    state = empty_state(a, 6 * count + 10)
    assert load(a, state, np.arange(count), budget)
    out = np.zeros(2, np.int64)
    for _ in range(150):
        p, v = rng.randrange(state.meta[LENGTH]), rng.randrange(count)
        attempt(a, state, rng.random(), v, p, rng.random(), out)
        assert not state.step["diff"].any()
        assert not state.step["less"].any()
        assert not state.mark.any()
        sequence = state.step["seq"][: state.meta[LENGTH]].tolist()
        expected = replay(problem, sequence)
        assert bytes_during(a, state) == expected
        over = sum(max(0, x - budget) for x in expected)
        assert (state.meta[TIME], state.meta[OVER]) == (check(problem, sequence)[0], over)
        assert evaluate(a, np.array(sequence), budget) == (*check(problem, sequence), over)
        assert problem.turn is None or sequence[state.meta[TURN]] == problem.turn


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 20))
def test_annealing_ends_in_an_exact_state(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 14)
    problem = random_problem(rng, count, turn=seed % 3 > 0)
    a = flatten(problem)
    peak = check(problem, range(count))[1]
    budget = rng.randint(min(problem.floor, peak), peak)
    state = empty_state(a, 6 * count + 10)
    load(a, state, np.arange(count), budget)
    best, record = np.zeros(6 * count + 20, np.int64), np.zeros(RECORD, np.int64)
    record[0] = -1
    fixed = seed % 2 == 0
    anneal(a, state, 5000, 5.0, 0.1, 1.0, 2.0, 2e3, seed, fixed, False, best, record)
    sequence = state.step["seq"][: state.meta[LENGTH]].tolist()
    assert bytes_during(a, state) == replay(problem, sequence)
    if fixed:
        assert list(dict.fromkeys(sequence)) == list(range(count))
    if record[0] >= 0:
        total, peak = check(problem, best[: record[1]].tolist())
        assert total == record[0]
        assert peak <= budget
