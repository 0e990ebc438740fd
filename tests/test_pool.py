"""The pool of rented tensors: exact counts, a hard limit, and no tensor lent twice."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from fxmem.errors import PoolError
from fxmem.pool import ActivationPool, PoolStats


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rent_return_rent_is_the_same_memory() -> None:
    pool = ActivationPool(1000)
    first = pool.rent((5, 10))
    assert first.shape == (5, 10) and first.dtype == torch.float32 and first.is_contiguous()
    place = first.data_ptr()
    pool.give_back(first)
    second = pool.rent([5, 10])
    assert second.data_ptr() == place and second is not first
    assert pool.stats == PoolStats(hits=1, misses=1, returns=1, rented_tensors=1, rented_bytes=200)
    assert pool.stats.hit_ratio == 0.5
    assert ActivationPool(1).stats.hit_ratio == 0.0


@pytest.mark.parametrize(
    "other", [{"shape": (10, 5)}, {"dtype": torch.int32}, {"device": "meta"}, {"shape": (50,)}]
)
def test_shape_dtype_and_device_tell_apart(other: dict) -> None:
    pool = ActivationPool(1000)
    pool.give_back(pool.rent((5, 10)))
    asked = {"shape": (5, 10), **other}
    found = pool.rent(
        asked["shape"], dtype=other.get("dtype", torch.float32), device=other.get("device", "cpu")
    )
    assert pool.stats.hits == 0 and pool.stats.misses == 2
    assert found.shape == asked["shape"]


def test_contents_are_not_cleared() -> None:
    pool = ActivationPool(1000)
    pool.give_back(pool.rent((7,)).fill_(3.0))
    assert pool.rent((7,)).tolist() == [3.0] * 7


def test_double_return_and_foreign_tensors_are_refused() -> None:
    pool, other = ActivationPool(1000), ActivationPool(1000)
    tensor = pool.rent((4,))
    for foreign in (torch.empty(4), tensor.view(2, 2), tensor.detach(), other.rent((4,))):
        with pytest.raises(PoolError, match="not on loan"):
            pool.give_back(foreign)
    pool.give_back(tensor)
    with pytest.raises(PoolError, match="returned before"):
        pool.give_back(tensor)
    again = pool.rent((4,))  # the same memory: an old handle to it is still refused
    with pytest.raises(PoolError, match="returned before"):
        pool.give_back(tensor)
    pool.give_back(again)
    assert pool.stats.returns == 2


def test_resized_tensor_leaves_the_pool() -> None:
    pool = ActivationPool(1000)
    tensor = pool.rent((4,))
    tensor.resize_(40)
    with pytest.raises(PoolError, match="resized"):
        pool.give_back(tensor)
    assert pool.held_bytes == 0


def test_limit_is_hard_and_the_oldest_goes_first() -> None:
    pool = ActivationPool(1000)
    old, new = pool.rent((100,)), pool.rent((50,))
    pool.give_back(old)
    pool.give_back(new)
    kept = new.data_ptr()
    held = pool.rent((150,))  # 600 and 600 do not fit: the older, 400, goes
    assert pool.stats.evictions == 1 and pool.held_bytes == 800
    assert pool.rent((50,)).data_ptr() == kept
    with pytest.raises(PoolError, match=r"404 B .* do not fit: 600 B of .* 1000 B"):
        pool.rent((101,))
    pool.give_back(held)
    assert pool.held_bytes == 600
    with pytest.raises(PoolError, match="can hold nothing"):
        ActivationPool(0)


def test_a_refused_rent_evicts_nothing() -> None:
    pool = ActivationPool(1000)
    pool.give_back(pool.rent((100,)))
    with pytest.raises(PoolError):
        pool.rent((251,))
    assert pool.stats.pooled_bytes == 400 and pool.stats.evictions == 0


def test_eviction_by_age() -> None:
    clock = Clock()
    pool = ActivationPool(1000, clock=clock)
    a, b = pool.rent((1,)), pool.rent((2,))
    pool.give_back(a)
    clock.now = 10.0
    pool.give_back(b)
    clock.now = 12.0
    assert pool.evict(older_than=13.0) == 0
    assert pool.evict(older_than=12.0) == 4
    assert pool.evict() == 8
    assert pool.stats.evictions == 2 and pool.held_bytes == 0


def test_a_dropped_rental_no_longer_counts() -> None:
    pool = ActivationPool(1000)
    tensor = pool.rent((250,))
    del tensor
    assert pool.held_bytes == 0
    assert pool.rent((250,)).numel() == 250
    assert pool.stats.returns == 0 and pool.stats.misses == 2


def test_autograd_never_reads_anothers_values() -> None:
    pool = ActivationPool(1000)
    rented = pool.rent((4,)).fill_(2.0)
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * rented).sum()
    pool.give_back(rented)
    pool.rent((4,)).fill_(5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_rented_under_inference_mode_serves_training() -> None:
    pool = ActivationPool(1000)
    with torch.inference_mode():
        pool.give_back(pool.rent((4,)))
    x = pool.rent((4,)).fill_(1.0).requires_grad_()
    x.square().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 4


def test_threads() -> None:
    pool, faults = ActivationPool(40_000), []

    def work(mark: int) -> None:
        for turn in range(150):
            tensor = pool.rent((1 + (turn * mark) % 7, 100))
            tensor.fill_(mark)
            if not bool((tensor == mark).all()):
                faults.append((mark, turn))
            pool.give_back(tensor)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = pool.stats
    assert not faults
    assert stats.hits + stats.misses == stats.returns == 8 * 150
    assert stats.rented_tensors == stats.rented_bytes == 0
    assert stats.pooled_tensors == stats.misses - stats.evictions
    assert pool.held_bytes <= 40_000


class PoolMachine(RuleBasedStateMachine):
    """Against a model: a list of idle kinds, oldest first."""

    rented = Bundle("rented")
    LIMIT = 100

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.pool = ActivationPool(self.LIMIT, clock=self.clock)
        self.idle: list[tuple[int, torch.dtype]] = []
        self.out: list[torch.Tensor] = []
        self.marks = 0
        self.counts = {"hits": 0, "misses": 0, "returns": 0, "evictions": 0}

    @staticmethod
    def bytes(kinds: list[tuple[int, torch.dtype]]) -> int:
        return sum(n * dtype.itemsize for n, dtype in kinds)

    def lent(self) -> int:
        return sum(t.nbytes for t in self.out)

    @rule(target=rented, n=st.integers(0, 12), dtype=st.sampled_from([torch.float32, torch.uint8]))
    def rent(self, n: int, dtype: torch.dtype) -> torch.Tensor | None:
        kind = (n, dtype)
        size = self.bytes([kind])
        if kind not in self.idle and self.lent() + size > self.LIMIT:
            with pytest.raises(PoolError):
                self.pool.rent((n,), dtype=dtype)
            return None
        if kind in self.idle:
            del self.idle[len(self.idle) - 1 - self.idle[::-1].index(kind)]
            self.counts["hits"] += 1
        else:
            while self.lent() + self.bytes(self.idle) + size > self.LIMIT:
                del self.idle[0]
                self.counts["evictions"] += 1
            self.counts["misses"] += 1
        tensor = self.pool.rent((n,), dtype=dtype)
        self.marks = (self.marks + 1) % 250
        self.out.append(tensor.fill_(self.marks))
        return tensor

    @rule(tensor=consumes(rented))
    def give_back(self, tensor: torch.Tensor | None) -> None:
        if tensor is None:
            return
        assert tensor.unique().numel() <= 1  # nobody else wrote to it
        self.pool.give_back(tensor)
        self.out = [t for t in self.out if t is not tensor]
        self.idle.append((tensor.numel(), tensor.dtype))
        self.counts["returns"] += 1
        with pytest.raises(PoolError):
            self.pool.give_back(tensor)

    @rule()
    def evict(self) -> None:
        assert self.pool.evict() == self.bytes(self.idle)
        self.counts["evictions"] += len(self.idle)
        self.idle = []

    @invariant()
    def exact(self) -> None:
        assert self.pool.stats == PoolStats(
            **self.counts,
            pooled_tensors=len(self.idle),
            pooled_bytes=self.bytes(self.idle),
            rented_tensors=len(self.out),
            rented_bytes=self.lent(),
        )
        assert self.pool.held_bytes <= self.LIMIT


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
