"""Tensors lent and taken back, for shapes that are not known ahead of time."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .budget import format_bytes
from .errors import PoolError


@dataclass(frozen=True)
class PoolStats:
    """What a pool did so far, and what it holds now.

    Attributes
    ----------
    hits, misses : int
        Rents served from idle tensors, and those that allocated.
    returns : int
        Tensors taken back.
    evictions : int
        Idle tensors freed, to make room or because of their age.
    pooled_tensors, pooled_bytes : int
        Idle, waiting to be rented again.
    rented_tensors, rented_bytes : int
        Lent out.
    """

    hits: int = 0
    misses: int = 0
    returns: int = 0
    evictions: int = 0
    pooled_tensors: int = 0
    pooled_bytes: int = 0
    rented_tensors: int = 0
    rented_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        """Share of rents served from idle tensors; 0 before the first."""
        rents = self.hits + self.misses
        return self.hits / rents if rents else 0.0


class _Key(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(eq=False)
class _Block:
    """One allocation. Each rental is another view of it, so that an old one is known as such."""

    base: torch.Tensor
    key: _Key
    returned_at: float = 0.0
    watch: weakref.ref[torch.Tensor] | None = None


class ActivationPool:
    """Rent tensors by shape, dtype and device, within a hard limit of bytes.

    Parameters
    ----------
    limit_bytes : int
        Most bytes that the pool ever holds, idle and rented together.
    clock : callable, optional
        Seconds, by which the age of idle tensors is told.

    Notes
    -----
    Safe to use from several threads. A rented tensor that is dropped without being returned
    no longer counts and its memory is never lent again. One that autograd still needs when it is
    returned is safe too: whoever writes to the memory next moves its version on, and the
    backward pass raises instead of reading another's values.
    """

    def __init__(self, limit_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if limit_bytes <= 0:
            raise PoolError(f"a pool of {limit_bytes} bytes can hold nothing; give a larger limit.")
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: OrderedDict[_Block, None] = OrderedDict()  # by age, oldest first
        self._by_key: dict[_Key, list[_Block]] = {}
        self._rented: dict[int, _Block] = {}  # by id of the view that was lent
        # Filled by callbacks of the collector, which may run anywhere, even under the lock.
        self._dropped: deque[tuple[int, _Block]] = deque()
        self._hits = self._misses = self._returns = self._evictions = 0
        self._pooled_bytes = self._rented_bytes = 0

    def rent(
        self,
        shape: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Lend a contiguous tensor with uninitialised contents.

        Raises
        ------
        PoolError
            The limit would be passed even with every idle tensor evicted.
        """
        key = _Key(tuple(int(n) for n in shape), dtype, _with_index(torch.device(device)))
        # An inference tensor could never be lent to training again.
        with self._lock, torch.inference_mode(False):
            self._reap()
            block = self._take(key) or self._allocate(key)
            lent = block.base.detach()
            self._reap()  # before `id(lent)`, which a dropped tensor may have had, is entered
            name, dropped = id(lent), self._dropped
            block.watch = weakref.ref(lent, lambda _: dropped.append((name, block)))
            self._rented[name] = block
            self._rented_bytes += key.bytes
            return lent

    def give_back(self, tensor: torch.Tensor) -> None:
        """Take a rented tensor back; its contents may change from now on.

        Raises
        ------
        PoolError
            It is not a tensor on loan from this pool (never was, or was returned before),
            or its storage was resized meanwhile.
        """
        with self._lock:
            self._reap()
            block = self._rented.get(id(tensor))
            if block is None:
                raise PoolError(
                    f"a tensor of shape {tuple(tensor.shape)} is not on loan from this pool: it "
                    "was returned before, or never rented. Return each rented tensor once, "
                    "itself and not a view or result of it."
                )
            self._forget(id(tensor), block)
            if block.base.untyped_storage().nbytes() != block.key.bytes:
                raise PoolError(
                    f"a rented tensor of shape {block.key.shape} was resized; it leaves the pool. "
                    "Rent one of the other shape instead."
                )
            self._returns += 1
            block.returned_at = self._clock()
            self._idle[block] = None
            self._by_key.setdefault(block.key, []).append(block)
            self._pooled_bytes += block.key.bytes

    def evict(self, older_than: float = 0.0) -> int:
        """Free tensors that have been idle for at least so many seconds; returns the bytes."""
        with self._lock:
            self._reap()
            before, now = self._pooled_bytes, self._clock()
            while self._idle and now - next(iter(self._idle)).returned_at >= older_than:
                self._evict_oldest()
            return before - self._pooled_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of all idle and rented tensors; never above the limit."""
        stats = self.stats
        return stats.pooled_bytes + stats.rented_bytes

    @property
    def stats(self) -> PoolStats:
        """Exact counts, all of one moment."""
        with self._lock:
            self._reap()
            return PoolStats(
                hits=self._hits,
                misses=self._misses,
                returns=self._returns,
                evictions=self._evictions,
                pooled_tensors=len(self._idle),
                pooled_bytes=self._pooled_bytes,
                rented_tensors=len(self._rented),
                rented_bytes=self._rented_bytes,
            )

    def _take(self, key: _Key) -> _Block | None:
        """The block of this kind that was returned last, most likely still in a cache."""
        blocks = self._by_key.get(key)
        if not blocks:
            return None
        block = blocks[-1]
        self._leave_idle(block)
        self._hits += 1
        return block

    def _allocate(self, key: _Key) -> _Block:
        if self._rented_bytes + key.bytes > self.limit_bytes:
            raise PoolError(
                f"{format_bytes(key.bytes)} for a tensor of shape {key.shape} do not fit: "
                f"{format_bytes(self._rented_bytes)} of the pool's "
                f"{format_bytes(self.limit_bytes)} are on loan. Return tensors first, or give "
                "the pool a larger limit."
            )
        while self._rented_bytes + self._pooled_bytes + key.bytes > self.limit_bytes:
            self._evict_oldest()
        base = torch.empty(key.shape, dtype=key.dtype, device=key.device)
        self._misses += 1
        return _Block(base, key)

    def _evict_oldest(self) -> None:
        self._leave_idle(next(iter(self._idle)))
        self._evictions += 1

    def _leave_idle(self, block: _Block) -> None:
        del self._idle[block]
        blocks = self._by_key[block.key]
        blocks.remove(block)
        if not blocks:
            del self._by_key[block.key]
        self._pooled_bytes -= block.key.bytes

    def _forget(self, name: int, block: _Block) -> None:
        del self._rented[name]
        block.watch = None
        self._rented_bytes -= block.key.bytes

    def _reap(self) -> None:
        """Stop counting what was dropped without being returned."""
        while self._dropped:
            name, block = self._dropped.popleft()
            if self._rented.get(name) is block:
                self._forget(name, block)


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
