"""Layers run on fake tensors: exact bytes, nothing computed, nothing allocated."""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode  # 2.11 to 2.15
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..runtime.random import rng_state
from .tape import Retain, Tape


@dataclass(frozen=True)
class LayerProfile:
    """What a layer takes in a chain, for one input shape.

    Attributes
    ----------
    saved_bytes : int
        Kept for its backward pass, beside its input, output and parameters.
    output_bytes, gradient_bytes : int
        Its output; the gradients of its parameters.
    forward_bytes, backward_bytes : int
        Most that is live at once during its forward (nothing kept) and backward pass, beside
        its input, what it saved, and the gradient of its output.
    seconds : float
        Of one forward pass; 0 where it was not measured.
    """

    saved_bytes: int
    output_bytes: int
    gradient_bytes: int
    forward_bytes: int
    backward_bytes: int
    seconds: float = 0.0


class LiveBytes(TorchDispatchMode):
    """Sums the bytes of the storages that operators make, from birth to death."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.random = False
        self._known: dict[int, weakref.ref[Any]] = {}

    def know(self, *tensors: Tensor) -> None:
        """Leave these out: they were there before."""
        for tensor in tensors:
            self._enter(tensor, 0)

    def restart(self) -> int:
        """Begin a new peak; returns what is live."""
        self.peak = self.live
        return self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.layout is torch.strided:
                self._enter(value, value.untyped_storage().nbytes())
        self.peak = max(self.peak, self.live)
        return result

    def _enter(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known and self._known[key]() is not None:
            return

        def gone(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, gone)
        self.live += size


@dataclass(frozen=True)
class FakeChain:
    """Fake copies of layers and of the chain's input."""

    layers: list[nn.Module]
    x: Tensor
    mode: FakeTensorMode

    @classmethod
    def of(cls, layers: Sequence[nn.Module], x: Tensor) -> FakeChain:
        """Copies without memory of their own, in one piece: shared parameters stay shared."""
        mode = FakeTensorMode()
        with FakeCopyMode(mode):
            fakes = copy.deepcopy(nn.ModuleList(layers))
        for parameter in fakes.parameters():
            parameter.grad = None
        return cls(list(fakes), mode.from_tensor(x.detach()), mode)

    def peak_of_choice(self, choice: Sequence[Retain]) -> int:
        """The same for the manager's loop, where layers keep what is chosen."""
        again = sum(retain is not Retain.EVERYTHING for retain in choice)
        return self.peak(tape_step(choice), states=again + 1 if again else 0)

    def peak(self, step: Callable[[Sequence[nn.Module], Tensor], Any], states: int = 0) -> int:
        """Most bytes above layers and input that are live at once in a step, its results too.

        If it draws random numbers, so many states of the generator count as well.
        """
        counter = LiveBytes()
        counter.know(self.x, *nn.ModuleList(self.layers).parameters())
        counter.know(*nn.ModuleList(self.layers).buffers())
        with self.mode, counter:
            step(self.layers, self.x)
        for parameter in nn.ModuleList(self.layers).parameters():
            parameter.grad = None
        return counter.peak + (states * rng_state(str(self.x.device)).nbytes * counter.random)


def plain_step(layers: Sequence[nn.Module], x: Tensor) -> None:
    """The plain loop: forward, and backward from a gradient of ones."""
    x = x.detach().requires_grad_(x.is_floating_point())
    for layer in layers:
        x = layer(x)
    x.backward(torch.ones_like(x))


def tape_step(choice: Sequence[Retain]) -> Callable[[Sequence[nn.Module], Tensor], None]:
    """The manager's loop for a choice: forward, and backward from a gradient of ones."""

    def step(layers: Sequence[nn.Module], x: Tensor) -> None:
        tape = Tape()
        for index, layer in enumerate(layers):
            x = tape.forward(layer, x, index, choice[index])
        gradient: Tensor | None = torch.ones_like(x)
        del x
        for index in reversed(range(len(layers))):
            if gradient is not None:
                gradient = tape.backward(layers[index], gradient, index)

    return step


def profile_layers(
    layers: Sequence[nn.Module], x: Tensor, timed: bool = False
) -> tuple[LayerProfile, ...]:
    """Bytes of each layer of a chain, and with ``timed`` its seconds on the real input."""
    seconds = _seconds(layers, x) if timed else [0.0] * len(layers)
    chain = FakeChain.of(layers, x)
    counter, tape, given = LiveBytes(), Tape(), chain.x
    counter.know(given, *nn.ModuleList(chain.layers).parameters())
    counter.know(*nn.ModuleList(chain.layers).buffers())
    found = []
    with chain.mode, counter:
        for layer, took in zip(chain.layers, seconds, strict=True):
            start = counter.restart()
            with torch.no_grad():
                output = layer(given)
            forward = counter.peak - start
            del output
            start = counter.restart()
            output = tape.forward(layer, given, 0, Retain.EVERYTHING)
            made = output.untyped_storage().nbytes()
            saved = counter.live - start - made
            gradient = torch.ones_like(output)
            start = counter.restart()
            passed = tape.backward(layer, gradient, 0)
            backward = counter.peak - start
            del passed, gradient
            own = sum(p.grad.nbytes for p in layer.parameters() if p.grad is not None)
            for parameter in layer.parameters():
                parameter.grad = None
            found.append(LayerProfile(max(0, saved), made, own, forward, backward, took))
            given = output
    return tuple(found)


def _seconds(layers: Sequence[nn.Module], x: Tensor) -> list[float]:
    """Time each layer once, after one run that is not counted, without leaving a trace."""
    found = []
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        for layer in layers:
            buffers = {n: b.clone() for n, b in layer.named_buffers()}
            for _ in range(2):
                start = time.perf_counter()
                y = torch.func.functional_call(layer, buffers, (x,))
                if devices:
                    torch.cuda.synchronize(x.device)
                took = time.perf_counter() - start
            found.append(took)
            x = y
    return found
