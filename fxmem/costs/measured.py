"""Costs measured on the device: each distinct operator call once, then kept on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.fx as fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes  # private; 2.11 to 2.15

from ..allocator import is_profiled, peak_of_calls
from ..runtime.native import load as load_native
from ..storages import is_collective, map_storages
from .layouts import layouts, unlike
from .table import Cost, CostFile, operator_key

_REPEATS = 5
_ENOUGH_SECONDS = 0.03

Fill = Callable[[torch.Tensor], torch.Tensor]
log = logging.getLogger("fxmem")


class MeasuredCosts:
    """A `CostTable` that runs what it has not seen before.

    Parameters
    ----------
    device : torch.device
    directory : Path, optional
        Folder of the cache; the user's cache folder by default.
    cache : bool
        Keep costs on disk.
    progress : callable, optional
        Called with (calls measured, calls to measure).
    """

    def __init__(
        self,
        device: torch.device,
        directory: Path | None = None,
        cache: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.device = device
        self.file = CostFile(device, directory) if cache else None
        self.known: dict[str, Cost] = self.file.read() if self.file else {}
        self.progress = progress

    def __getstate__(self) -> dict[str, Any]:
        """Without the one who listened."""
        return {**self.__dict__, "progress": None}

    def __call__(self, nodes: list[fx.Node]) -> dict[fx.Node, Cost]:
        """Cost of each node; operators that are not torch's own cost nothing.

        Nor do collectives: a run of one would wait for other processes.
        """
        plain = [n for n in nodes if isinstance(n.target, OpOverload) and not is_collective(n)]
        missing = {k: n for n in plain if (k := operator_key(n)) not in self.known}
        if missing:
            self._measure(missing)
        known = {n: self.known[operator_key(n)] for n in plain}
        return {n: known.get(n, Cost(0.0, 0)) for n in nodes}

    def _measure(self, missing: dict[str, fx.Node]) -> None:
        found = {}
        # The caller is in the midst of a trace, whose fake mode would make every operator
        # free, and perhaps of a random sequence of its own.
        with (
            _disable_current_modes(),
            torch.random.fork_rng(devices=_cuda_devices(self.device)),
            torch.no_grad(),
        ):
            for done, (key, node) in enumerate(missing.items()):
                found[key] = measure_call(node, self.device)
                if self.progress:
                    self.progress(done + 1, len(missing))
        self.known.update(found)
        if self.file and not is_profiled():  # it makes short calls longer
            self.file.add(found)


def measure_call(node: fx.Node, device: torch.device) -> Cost:
    """Run one call on made-up arguments, for its least seconds and its bytes beyond the outputs.

    The least, because a busy machine only adds. What it makes is compared with the fake value of
    the node, which does not always lie in memory as the real one. An operator that takes none of
    our arguments counts as free; what it really takes is learnt when the step is proved.
    """
    synchronize = torch.cuda.synchronize if device.type == "cuda" else _nothing
    for fill in (torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.zero_):
        call = _call(node, fill)
        try:
            made = call()  # the first call may compile, tune or load a library
            synchronize()
            break
        except RuntimeError as error:  # some take probabilities only, or positive values
            log.debug("%s refuses made-up arguments: %s", node.target, error)
    else:
        return Cost(0.0, 0)
    real = layouts(made)
    results = real if unlike(real, layouts(node.meta.get("val"))) else ()
    size = _bytes_of(made) if results else output_bytes(node)
    del made
    seconds: list[float] = []
    while len(seconds) < _REPEATS and (len(seconds) < 3 or sum(seconds) < _ENOUGH_SECONDS):
        start = time.perf_counter()
        result = call()
        synchronize()
        seconds.append(time.perf_counter() - start)
        del result
    return Cost(min(seconds), max(0, _peak(call, device) - size), results)


def _peak(call: Callable[[], Any], device: torch.device) -> int:
    """Most bytes at once, beside a profiler of the user's if need be."""
    native = load_native() if device.type == "cpu" and is_profiled() else None
    return native.peak_of(call) if native else peak_of_calls([call], device)[0]


def _bytes_of(made: Any) -> int:
    values = made if isinstance(made, (tuple, list)) else [made]
    held = [v.untyped_storage() for v in values if isinstance(v, torch.Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in held}.values())


def _call(node: fx.Node, fill: Fill) -> Callable[[], Any]:
    target = node.target
    assert callable(target)
    args, kwargs = materialise((node.args, node.kwargs), fill)
    return lambda: target(*args, **kwargs)


def output_bytes(node: fx.Node) -> int:
    """Bytes of the storages that the node makes."""
    graph = node.graph
    cached = getattr(graph, "_fxmem_storages", None)
    storages = cached if cached and node in cached.of else map_storages(graph)
    graph._fxmem_storages = storages  # type: ignore[attr-defined]
    return sum(storages.size[s] for s in storages.made_at(node))


def materialise(value: Any, fill: Fill = torch.Tensor.normal_) -> Any:
    """Real arguments in place of nodes: ``fill`` for floats, zeros where values are indices."""
    made: dict[fx.Node, torch.Tensor] = {}

    def real(node: fx.Node) -> Any:
        if node not in made:
            fake = node.meta["val"]
            made[node] = _fill(fake, fill) if isinstance(fake, torch.Tensor) else fake
        return made[node]

    return fx.map_arg(value, real)


def _fill(fake: torch.Tensor, fill: Fill) -> torch.Tensor:
    """A tensor of the fake one's layout; expanded dimensions share memory as they do there."""
    if fake.layout is not torch.strided or fake.numel() == 0:
        return torch.zeros(fake.shape, dtype=fake.dtype, layout=fake.layout, device=fake.device)
    pairs = zip(fake.shape, fake.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    flat = torch.zeros(extent, dtype=fake.dtype, device=fake.device)
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        fill(flat)
    return flat.as_strided(fake.shape, fake.stride())


def _cuda_devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


def _nothing() -> None:
    return None
