"""What is to be cut: a chain of items, and the devices that share it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One way for an item to run backward.

    Attributes
    ----------
    extra : float
        Seconds of recomputation (and stalls on transfers) a microbatch, at speed 1.
    kept : int
        Bytes kept from forward to backward, a microbatch.
    peak : int
        Bytes taken beside what is kept while the item runs, forward or backward.
    """

    extra: float
    kept: int
    peak: int = 0


@dataclass(frozen=True)
class Item:
    """A piece of the chain that is not cut.

    Attributes
    ----------
    forward, backward : float
        Seconds a microbatch at speed 1, without recomputation; ``backward`` is all of it.
    resident : int
        Bytes of parameters, buffers, gradients and optimizer state; tied ones are in a `Tie`.
    options : tuple of Option
        At least one.
    weight : float
        Seconds of ``backward`` that only make gradients of parameters, and may wait.
    """

    forward: float
    backward: float
    resident: int
    options: tuple[Option, ...]
    weight: float = 0.0

    def __post_init__(self) -> None:
        times = (self.forward, self.backward, self.weight, *(o.extra for o in self.options))
        sizes = (self.resident, *(b for o in self.options for b in (o.kept, o.peak)))
        if not self.options or min(times) < 0 or min(sizes) < 0 or self.weight > self.backward:
            raise ValueError("an item needs an option, nothing negative, weight within backward")


@dataclass(frozen=True)
class Tie:
    """Parameters that several items share: held once by each stage with any of the items.

    Attributes
    ----------
    items : tuple of int
    resident : int
        Bytes that a stage holds for them: values, gradients, optimizer state.
    bytes : int
        Bytes of gradient that the stages exchange once a step.
    """

    items: tuple[int, ...]
    resident: int
    bytes: int = 0


@dataclass(frozen=True)
class Device:
    """Where a stage may go.

    Attributes
    ----------
    memory : int
        Bytes that may be held at once.
    speed : float
        All seconds are divided by it.
    bandwidth : float
        Bytes a second; a link has the less of its two ends.
    latency : float
        Seconds; a link has the more of its two ends.
    """

    memory: int
    speed: float = 1.0
    bandwidth: float = float("inf")
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.memory < 0 or self.speed <= 0 or self.bandwidth <= 0 or self.latency < 0:
            raise ValueError("memory and latency must not be negative, speed, bandwidth positive")


@dataclass(frozen=True)
class PartitionProblem:
    """A chain of items and the devices that share it.

    Attributes
    ----------
    items : tuple of Item
    crossing : tuple of int
        One number for each cut, between item i and i + 1: bytes a microbatch that go forward,
        and as gradients backward. A value read further on crosses every cut on its way.
    devices : tuple of Device
    ties : tuple of Tie
    """

    items: tuple[Item, ...]
    crossing: tuple[int, ...]
    devices: tuple[Device, ...]
    ties: tuple[Tie, ...] = ()

    def __post_init__(self) -> None:
        if not self.items or not self.devices:
            raise ValueError("a problem needs items and devices")
        if len(self.crossing) != len(self.items) - 1 or min(self.crossing, default=0) < 0:
            raise ValueError("crossing needs one number, not negative, between any two items")
        if any(not 0 <= i < len(self.items) for tie in self.ties for i in tie.items):
            raise ValueError("a tie names an item that is not there")

    def entry(self, start: int) -> int:
        """Bytes that cross the cut before item ``start``; none at the ends of the chain."""
        return self.crossing[start - 1] if 0 < start < len(self.items) else 0

    def resident(self, start: int, stop: int) -> int:
        """Bytes that a stage of items ``start:stop`` always holds."""
        own = sum(item.resident for item in self.items[start:stop])
        return own + sum(
            tie.resident for tie in self.ties if any(start <= i < stop for i in tie.items)
        )


def link_seconds(one: Device, other: Device, size: int) -> float:
    """Seconds that ``size`` bytes take from one device to another."""
    return max(one.latency, other.latency) + size / min(one.bandwidth, other.bandwidth)
