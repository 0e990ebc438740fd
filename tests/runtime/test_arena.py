"""Steps in an arena: the same numbers, whatever the caller keeps, drops or repeats."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import threading

import pytest
import torch
from torch import nn

import fxmem
from fxmem.allocator import record
from fxmem.runtime import native
from tests.cases import CASES, make
from tests.runtime.arena_cases import Net, fitted_net, gradients, seeded, tokens
from tests.steps import differences, equal, run

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason="no C++ compiler for the arena"),
    pytest.mark.usefixtures("poison"),
]


@pytest.mark.parametrize("name", CASES)
def test_trains_as_eager(name: str) -> None:
    eager, case = make(name), make(name)
    wanted = run(eager.module, eager.module, eager, 3)
    fitted = fxmem.optimize(case.module, None)
    assert differences(run(fitted, case.module, case, 3), wanted) == []
    arena = fitted._session.current.arena
    if arena is not None:
        assert arena.served > 0
        assert arena.refused == 0


def test_all_but_the_loss_comes_from_the_arena() -> None:
    _, fitted, arena = fitted_net()
    served = arena.served
    seeded(fitted, 1).backward()
    plan = fitted.plan.pool
    placed = [r for r in plan.requests if r.offset is not None]
    assert arena.served - served == len(placed)
    assert arena.refused == 0
    assert [r.bytes for r in plan.requests if r.offset is None] == [4]
    assert plan.ratio <= 1.01


def test_the_prediction_is_what_the_allocator_reports() -> None:
    for budget in (None, 0.95):
        _, fitted, _ = fitted_net(budget)
        peak = record(lambda fitted=fitted: fitted(tokens()).backward()).peak
        plan = fitted.plan
        assert peak == pytest.approx(plan.peak_bytes - plan.resident_bytes, rel=0.005)
        assert fitted._session.current.measured == pytest.approx(plan.peak_bytes, rel=0.005)


def test_gradients_live_in_the_arena_until_they_are_dropped() -> None:
    eager, fitted, arena = fitted_net()
    seeded(fitted, 1).backward()
    seeded(eager, 1).backward()
    assert arena.live_blocks == len(list(fitted.parameters()))
    kept = [p.grad for p in fitted.parameters()]
    fitted.zero_grad()
    seeded(fitted, 2).backward()  # another arena, since the first gradients are still there
    for grad, parameter in zip(kept, eager.parameters(), strict=True):
        assert equal(grad, parameter.grad)
        assert grad.untyped_storage().nbytes() == grad.numel() * 4
    del kept, grad
    fitted.zero_grad()
    assert arena.live_blocks == 0


def test_two_forwards_before_either_backward() -> None:
    eager, fitted, arena = fitted_net()
    results = []
    for call in (eager, fitted):
        losses = [seeded(call, seed) for seed in (1, 2, 3)]
        results.append([g for i in (1, 2, 0) for g in gradients(call, losses[i])])
        losses.clear()
    assert all(map(equal, *results))
    results.clear()
    assert arena.live_blocks == 0


def test_retain_graph() -> None:
    eager, fitted, arena = fitted_net()
    results = []
    for call in (eager, fitted):
        loss = seeded(call, 1)
        results.append(
            gradients(call, loss, retain_graph=True)
            + gradients(call, loss, retain_graph=True)
            + gradients(call, loss)
        )
        del loss
    assert all(map(equal, *results))
    results.clear()
    assert arena.live_blocks == 0


def test_dropped_graph_and_evaluation_in_between() -> None:
    eager, fitted, arena = fitted_net()
    for call in (eager, fitted):
        call.train()
    loss = seeded(fitted, 1)
    with torch.no_grad():
        fitted.eval()
        eager.eval()
        assert equal(fitted(tokens(4)), eager(tokens(4)))
        fitted.train()
        eager.train()
    dropped = seeded(fitted, 2)
    assert arena.live_blocks > 0
    del dropped
    assert all(map(equal, gradients(fitted, loss), gradients(eager, seeded(eager, 1))))
    del loss
    assert arena.live_blocks == 0


def test_an_exception_in_the_midst_of_a_step() -> None:
    eager, fitted, arena = fitted_net()
    before = seeded(fitted, 1)
    with pytest.raises(IndexError):
        fitted(torch.full((16, 8), 11))
    gc.collect()
    after = seeded(fitted, 2)
    for loss, seed in ((before, 1), (after, 2)):
        wanted = gradients(eager, seeded(eager, seed))
        assert all(map(equal, gradients(fitted, loss), wanted))
    del before, after, loss
    assert arena.live_blocks == 0


def test_hooks_that_move_saved_values() -> None:
    eager, fitted, arena = fitted_net()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.detach()):
        loss = seeded(fitted, 1)
        wanted = gradients(eager, seeded(eager, 1))
    other = seeded(fitted, 2)
    assert all(map(equal, gradients(fitted, loss), wanted))
    wanted = gradients(eager, seeded(eager, 2))
    assert all(map(equal, gradients(fitted, other), wanted))
    del loss, other
    assert arena.live_blocks == 0


def test_a_module_that_is_gone_leaves_its_gradients() -> None:
    eager, fitted, _ = fitted_net()
    seeded(eager, 1).backward()
    seeded(fitted, 1).backward()
    kept = [p.grad for p in fitted.parameters()]
    del fitted
    torch._dynamo.reset()
    gc.collect()
    assert all(map(equal, kept, [p.grad for p in eager.parameters()]))


def test_no_arena_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    native.load.cache_clear()
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    try:
        fitted = fxmem.optimize(Net(), None, (tokens(),))
        assert fitted.plan.pool is None
        fitted(tokens()).backward()
        with pytest.raises(native.Unavailable, match="no C\\+\\+ compiler"):
            native._library()
    finally:
        native.load.cache_clear()


def test_pool_can_be_left_out() -> None:
    fitted = fxmem.optimize(Net(), None, (tokens(),), pool=False)
    fitted(tokens()).backward()
    assert fitted.plan.pool is None
    assert fitted._session.current.arena is None


def interleave(call: nn.Module, steps: int, seed: int, wanted: list, failures: list) -> None:
    """Forwards, backwards, dropped graphs and exceptions in random order, checked as they go."""
    rng, pending = random.Random(seed), []
    try:
        for _ in range(steps):
            action = rng.random()
            if action < 0.45 and len(pending) < 4:
                which = rng.randrange(len(wanted))
                pending.append((call(tokens(which)), which))
            elif action < 0.85 and pending:
                loss, which = pending.pop(rng.randrange(len(pending)))
                found = gradients(call, loss, retain_graph=rng.random() < 0.3)
                if not all(map(equal, found, wanted[which])):
                    failures.append(which)
            elif action < 0.93 and pending:
                pending.pop(rng.randrange(len(pending)))
            else:
                with contextlib.suppress(IndexError):
                    call(torch.full((16, 8), 11))
    except Exception as error:  # reported by the test: a thread's own are lost
        failures.append(error)


def test_random_interleavings_of_two_threads() -> None:
    torch.manual_seed(0)
    eager = Net().eval()  # dropout of two threads would draw from one generator
    fitted = fxmem.optimize(copy.deepcopy(eager), None, (tokens(),))
    wanted = [gradients(eager, eager(tokens(seed))) for seed in range(4)]
    failures: list = []
    gradients(fitted, fitted(tokens(0)))
    arena = fitted._session.current.arena
    threads = [
        threading.Thread(target=interleave, args=(fitted, 500, seed, wanted, failures))
        for seed in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    gc.collect()
    assert arena.live_blocks == 0
    assert arena.served > 1000
