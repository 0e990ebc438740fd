"""Draws that are made again come out the same."""

from __future__ import annotations

import pytest
import torch

from fxmem.runtime.random import replay, rng_state, turn


def test_replay_gives_the_first_draw_and_leaves_the_generator() -> None:
    torch.rand(3)
    state = rng_state("cpu")
    first = torch.rand(5)
    torch.randn(100)
    now = torch.get_rng_state()
    assert torch.equal(replay(state, "cpu", torch.rand, 5), first)
    assert torch.equal(torch.get_rng_state(), now)
    assert torch.equal(replay(state, "cpu", torch.rand, 5), first)


def test_keywords_are_handed_on() -> None:
    state = rng_state("cpu")
    first = torch.rand(5, dtype=torch.float64)
    assert torch.equal(replay(state, "cpu", torch.rand, 5, dtype=torch.float64), first)


def test_the_generator_is_put_back_after_an_error() -> None:
    state = rng_state("cpu")
    torch.rand(3)
    now = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        replay(state, "cpu", torch.rand, -5)
    assert torch.equal(torch.get_rng_state(), now)


def test_a_state_is_a_copy() -> None:
    state = rng_state("cpu")
    before = state.clone()
    torch.rand(1000)
    assert torch.equal(state, before)
    assert state.numel() == 5056  # what `lower` keeps room for


def test_the_turn_never_runs() -> None:
    with pytest.raises(RuntimeError, match="split the graph"):
        turn()
