"""What layers keep between their forward and backward pass, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes  # 2.11 to 2.15

from ..errors import FxmemError
from ..runtime.random import replay, rng_state


class Retain(Enum):
    """What a layer keeps: all that autograd saves, its input, or nothing.

    A layer that keeps nothing is run again from the nearest layer before it that keeps its
    input: the two and all between them are one segment.
    """

    EVERYTHING = "everything"
    INPUT = "input"
    NOTHING = "nothing"


@dataclass(frozen=True)
class _Graph:
    """One layer as autograd recorded it. An edge holds what is saved, but not the output."""

    source: Tensor
    edge: GradientEdge | None


@dataclass(frozen=True)
class _Recipe:
    """How to run a layer again: its input, and the draws, buffers and autocast of the first run."""

    layer: nn.Module
    source: Tensor | None
    draws: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    autocast: tuple[str, bool, torch.dtype]

    def run(self, x: Tensor) -> Tensor:
        call: Callable[[], Any] = partial(self.layer, x)
        if self.buffers:
            call = partial(functional_call, self.layer, dict(self.buffers), (x,))
        for device, state in self.draws.items():
            call = partial(replay, state, device, call)
        kind, enabled, dtype = self.autocast
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            return call()


class Tape:
    """Runs layers forward and backward, one at a time.

    Layers are named by (position, run): a pipeline has several runs of one layer at once. A
    second forward of one name replaces what the first kept.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[int, Hashable], _Graph] = {}
        self._recipes: dict[tuple[int, Hashable], _Recipe] = {}
        self.recomputed = 0

    def __len__(self) -> int:
        return len(self._graphs) + len(self._recipes)

    @property
    def input_bytes(self) -> int:
        """Bytes of the layer inputs kept, each storage once."""
        sources = [r.source for r in self._recipes.values() if r.source is not None]
        sources += [g.source for g in self._graphs.values()]
        storages = {s.untyped_storage()._cdata: s.untyped_storage().nbytes() for s in sources}
        return sum(storages.values())

    def clear(self) -> None:
        """Forget everything."""
        self._graphs.clear()
        self._recipes.clear()

    def forward(
        self, layer: nn.Module, x: Tensor, index: int, retain: Retain, run: Hashable = 0
    ) -> Tensor:
        """Output of the layer, cut from the graph: a leaf, so that a loss leaves its gradient."""
        if not torch.is_grad_enabled():
            return layer(x)
        self._graphs.pop((index, run), None)
        self._recipes.pop((index, run), None)
        if retain is Retain.EVERYTHING:
            output, self._graphs[index, run] = _record(layer, x)
            return output
        if retain is Retain.NOTHING and (index - 1, run) not in self._recipes:
            retain = Retain.INPUT  # there is no segment to be a part of
        before = {n: (b, b.detach().clone()) for n, b in layer.named_buffers()}
        draws, version = _generators(x.device), x._version
        with torch.no_grad():
            output = layer(x)
        if x._version != version:
            raise FxmemError(
                f"layer {index} ({type(layer).__name__}) writes over its input, which is needed to "
                "run it again. Build it with inplace=False, or do not checkpoint it."
            )
        kind = x.device.type if torch.amp.is_autocast_available(x.device.type) else "cpu"
        self._recipes[index, run] = _Recipe(
            layer,
            x.detach() if retain is Retain.INPUT else None,
            {d: s for d, s in draws.items() if not _same(s, rng_state(d))},
            _changed(layer, before),
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)),
        )
        return _leaf(output)

    def backward(
        self, layer: nn.Module, grad_output: Tensor, index: int, run: Hashable = 0
    ) -> Tensor | None:
        """Gradient of the input; None where the input can have none. Frees what was kept."""
        if (index, run) not in self._graphs:
            self._rebuild(index, run)
        graph = self._graphs.pop((index, run))
        if graph.edge is None:
            return None
        torch.autograd.backward((graph.edge,), (grad_output,))
        return graph.source.grad

    def _rebuild(self, index: int, run: Hashable) -> None:
        """Run the segment that ends at a layer again, now recording."""
        first = index
        while (first, run) in self._recipes and self._recipes[first, run].source is None:
            first -= 1
        if (first, run) not in self._recipes:
            raise FxmemError(
                f"layer {index} has kept nothing to go backward from: run it forward with "
                "gradients enabled first, and go backward once for each forward, last layer first."
            )
        x = self._recipes[first, run].source
        assert x is not None
        for position in range(first, index + 1):
            recipe = self._recipes.pop((position, run))
            x, self._graphs[position, run] = _record(recipe.run, x)
            self.recomputed += 1


def _record(layer: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, _Graph]:
    source = _leaf(x)
    with torch.enable_grad():
        output = layer(source)
    edge = get_gradient_edge(output) if output.requires_grad else None
    return _leaf(output), _Graph(source, edge)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.is_floating_point() or x.is_complex())


def _generators(device: torch.device) -> dict[str, Tensor]:
    names = ["cpu"] if device.type != "cuda" else ["cpu", str(device)]
    return {name: rng_state(name) for name in names}


def _changed(layer: nn.Module, before: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Copies from before a run of those buffers that it wrote to.

    By value: batch_norm moves running statistics without moving their version on.
    """
    after = dict(layer.named_buffers())
    norms = {name for name, module in layer.named_modules() if isinstance(module, _NormBase)}

    def moved(name: str, buffer: Tensor, copy: Tensor) -> bool:
        if after.get(name) is not buffer:
            return True
        if isinstance(buffer, FakeTensor):  # it has no values
            return name.rpartition(".")[0] in norms and layer.training
        return not torch.equal(buffer, copy)

    return {name: copy for name, (buffer, copy) in before.items() if moved(name, buffer, copy)}


def _same(a: Tensor, b: Tensor) -> bool:
    with _disable_current_modes():  # states are real where layers run on fake tensors too
        return torch.equal(a, b)
