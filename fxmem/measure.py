"""What a step really took: peak bytes by the allocator's own account, and seconds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from .allocator import device_peaks, record, record_cuda
from .errors import FxmemError
from .residents import count_residents
from .storages import tensor_bytes


@dataclass(frozen=True)
class MeasuredStep:
    """A measured training step.

    Attributes
    ----------
    peak_bytes : int
        All that the step holds at once, residents included.
    resident_bytes : int
        Held when the step starts: parameters, buffers, inputs.
    seconds : float
        Median of the repeats.
    timeline : tuple of (float, int)
        Seconds since the start of the recorded step, and bytes held, residents included;
        on the CPU only.
    device_peak_bytes : mapping
        Of a module with a budget for each of several devices: name -> all that the step holds
        there at once (`allocator.device_peaks`), residents included.
    """

    peak_bytes: int
    resident_bytes: int
    seconds: float
    timeline: tuple[tuple[float, int], ...]
    device_peak_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def above_residents(self) -> int:
        """Peak bytes above what is held when the step starts."""
        return self.peak_bytes - self.resident_bytes


def measure(
    module_or_step: torch.nn.Module | Callable[..., Any], *inputs: Any, repeats: int = 3
) -> MeasuredStep:
    """Run training steps and record peak and time.

    Parameters
    ----------
    module_or_step : torch.nn.Module or callable
        A module is run forward and backward, from its loss (a scalar, or ``.loss`` of its
        output) or else from the sum of its outputs; its gradients, and those of the
        inputs, are set aside before and put back after. A callable is the step itself.
    *inputs
        Arguments of each call.
    repeats : int
        Timed steps, after one that is not counted.

    Notes
    -----
    The step is really run: buffers such as running statistics move on.
    """
    gc.collect()
    if isinstance(module_or_step, torch.nn.Module):
        return _measure_module(module_or_step, inputs, repeats)
    resident = _all_tensor_bytes()
    device = _device_of(inputs)
    return _measure(lambda: module_or_step(*inputs), lambda: None, resident, device, repeats)


def _measure_module(module: torch.nn.Module, inputs: Any, repeats: int) -> MeasuredStep:
    given = [v for v in tree_leaves(inputs) if isinstance(v, torch.Tensor)]
    leaves = [v for v in given if v.requires_grad and v.is_leaf]
    set_aside = {p: p.grad for p in (*module.parameters(), *leaves)}

    def clear() -> None:
        for parameter in set_aside:
            parameter.grad = None

    def step() -> None:
        loss_of(module(*inputs)).backward()

    clear()
    try:
        resident = count_residents(module, inputs).total
        device = _device_of([*module.parameters(), *inputs])
        measured = _measure(step, clear, resident, device, repeats)
        return replace(measured, device_peak_bytes=_by_device(module, step, clear))
    finally:
        for parameter, gradient in set_aside.items():
            parameter.grad = gradient


def _by_device(
    module: torch.nn.Module, step: Callable[[], Any], clear: Callable[[], None]
) -> dict[str, int]:
    """Peak of one more step on each logical device of an optimised module."""
    shares = getattr(getattr(module, "plan", None), "devices", ())
    if not shares:
        return {}
    peaks = device_peaks(step, len(shares))
    clear()
    return {s.device: s.resident_bytes + p for s, p in zip(shares, peaks, strict=True)}


def _measure(
    step: Callable[[], Any],
    clear: Callable[[], None],
    resident: int,
    device: torch.device,
    repeats: int,
) -> MeasuredStep:
    step()
    seconds = []
    for _ in range(repeats):
        clear()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    clear()
    recording = record_cuda(step, device) if device.type == "cuda" else record(step)
    clear()
    timeline = tuple((moment * 1e-9, resident + live) for moment, live in recording.timeline)
    middle = statistics.median(seconds) if seconds else float("nan")
    return MeasuredStep(resident + recording.peak, resident, middle, timeline)


def loss_of(output: Any) -> torch.Tensor:
    """The scalar to start backward from: the loss where there is one, else the outputs' sum.

    Raises
    ------
    FxmemError
        No output depends on a parameter.
    """
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    leaves = [v for v in tree_leaves(_as_tree(output)) if isinstance(v, torch.Tensor)]
    leaves = [v for v in leaves if v.requires_grad]
    if not leaves:
        raise FxmemError("no output of the module requires a gradient, so there is no step.")
    if len(leaves) == 1 and leaves[0].numel() == 1:
        return leaves[0].reshape(())
    return torch.stack([v.sum() for v in leaves]).sum()


def _as_tree(output: Any) -> Any:
    return dict(output) if hasattr(output, "items") else output


def _device_of(values: Any) -> torch.device:
    tensors = [v for v in tree_leaves(list(values)) if isinstance(v, torch.Tensor)]
    return next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))


def _all_tensor_bytes() -> int:
    """Bytes of every storage that Python can see; for a step whose module is not known."""
    found = {}
    for value in gc.get_objects():
        if not issubclass(type(value), torch.Tensor) or isinstance(value, FakeTensor):
            continue
        if value.layout is torch.strided and not value.is_meta:
            found[value.untyped_storage()._cdata] = tensor_bytes(value)
    return sum(found.values())
