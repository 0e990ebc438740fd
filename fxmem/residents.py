"""What a step holds from start to end: parameters, buffers, inputs, optimizer state."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes  # private; 2.11 to 2.15
from torch.utils._pytree import tree_leaves

from .errors import FxmemError
from .storages import allocated_bytes

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


@dataclass(frozen=True)
class Residents:
    """Bytes held throughout a step, by kind; a storage counts once."""

    parameters: int
    buffers: int
    gradients: int
    inputs: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.parameters + self.buffers + self.gradients + self.inputs + self.optimizer


@dataclass(frozen=True, eq=False)
class Holder:
    """Whose residents are charged: a module's, and an optimizer's state.

    Attributes
    ----------
    module : torch.nn.Module
    optimizer : torch.optim.Optimizer or str, optional
        Its state counts even before its first step.
    """

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer | str | None = None

    def __call__(self, inputs: Sequence[Any]) -> int:
        """Bytes held throughout a step with these inputs."""
        return self.count(inputs).total

    def count(self, inputs: Sequence[Any]) -> Residents:
        """The same, by kind."""
        return count_residents(self.module, list(inputs), self.optimizer)


def count_residents(
    module: torch.nn.Module, inputs: Any = (), optimizer: torch.optim.Optimizer | str | None = None
) -> Residents:
    """Count what ``module`` and its ``inputs`` hold now.

    Parameters
    ----------
    module : torch.nn.Module
    inputs : any nesting of tensors
    optimizer : torch.optim.Optimizer or str, optional
        Its state counts even before its first step.
    """
    seen: set[int] = set()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return Residents(
        parameters=_count(module.parameters(), seen),
        buffers=_count(module.buffers(), seen),
        gradients=_count(gradients, seen),
        inputs=_count((v for v in tree_leaves(inputs) if isinstance(v, torch.Tensor)), seen),
        optimizer=optimizer_bytes(module, optimizer),
    )


def share_residents(holder: object, total: int, placed: Sequence[tuple[Any, int]]) -> list[int]:
    """Bytes held throughout on each of several devices.

    Parameters
    ----------
    holder : Holder or other
        Whose residents they are; of others no optimizer state is known by parameter.
    total : int
        On all devices.
    placed : sequence of (tensor, int)
        Parameters, buffers and inputs, and the number of the device of each. With a parameter go
        its gradient and optimizer state. Whatever is not here is on the first device.

    Returns
    -------
    list of int
        One for each device up to the last that holds anything, at least one.
    """
    count = max((d for _, d in placed), default=0) + 1
    seen: set[int] = set()
    held = [0] * count
    for tensor, device in sorted(
        ((t, d) for t, d in placed if isinstance(t, torch.Tensor)), key=lambda pair: pair[1]
    ):
        held[device] += _count([tensor], seen)
        if tensor.is_leaf and tensor.grad is not None:
            held[device] += _count([tensor.grad], seen)
    if isinstance(holder, Holder):
        home = {t.untyped_storage()._cdata: d for t, d in placed if isinstance(t, torch.Tensor)}
        for device in range(1, count):
            own = {
                p
                for p in holder.module.parameters()
                if home.get(p.untyped_storage()._cdata) == device
            }
            with _disable_current_modes():  # the step is being traced
                held[device] += optimizer_bytes(holder.module, holder.optimizer, own)
    held[0] = total - sum(held[1:])
    return held


def gradient_bytes(module: torch.nn.Module) -> int:
    """Bytes of the gradients that the parameters of ``module`` have now."""
    return _count((p.grad for p in module.parameters() if p.grad is not None), set())


def _count(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        key = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
        if key not in seen:
            seen.add(key)
            total += allocated_bytes(tensor)
    return total


def optimizer_bytes(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer | str | None,
    only: Collection[torch.Tensor] | None = None,
) -> int:
    """Bytes of an optimizer's state after its first step, found by a step on meta tensors.

    Parameters
    ----------
    module : torch.nn.Module
    optimizer : torch.optim.Optimizer or str, optional
    only : collection of torch.Tensor, optional
        Parameters whose state counts; left out: all.

    Raises
    ------
    FxmemError
        The name is not known.
    """
    if optimizer is None:
        return 0
    if isinstance(optimizer, str):
        if optimizer.lower() not in OPTIMIZERS:
            raise FxmemError(
                f"optimizer {optimizer!r} is not known. Give one of {', '.join(OPTIMIZERS)}, "
                "or the optimizer itself."
            )
        trained = (p for p in module.parameters() if p.requires_grad)
        shadows = [_shadow(p) for p in trained if only is None or p in only]
        return _state_bytes(OPTIMIZERS[optimizer.lower()](shadows)) if shadows else 0
    if optimizer.state:
        states = [s for p, s in optimizer.state.items() if only is None or p in only]
        return _count((v for s in states for v in s.values() if torch.is_tensor(v)), set())
    groups: list[dict[str, Any]] = [
        {
            **{k: v for k, v in g.items() if k != "params"},
            "params": [_shadow(p) for p in g["params"] if only is None or p in only],
        }
        for g in optimizer.param_groups
    ]
    for group in groups:
        group.update({k: False for k in ("foreach", "fused", "capturable") if k in group})
    twin = copy.copy(optimizer)
    twin.state, twin.param_groups = defaultdict(dict), groups
    return _state_bytes(twin)


def _shadow(parameter: torch.Tensor) -> torch.nn.Parameter:
    shadow = torch.nn.Parameter(
        torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
    )
    if parameter.requires_grad:
        shadow.grad = torch.empty_like(shadow)
    return shadow


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    # The state is there before the first update, which for some (Adafactor) reads values.
    with contextlib.suppress(RuntimeError):
        optimizer.step()
    values = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    return sum(v.numel() * v.element_size() for v in values)
