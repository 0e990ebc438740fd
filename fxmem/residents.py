"""What a step holds from start to end: parameters, buffers, inputs, optimizer state."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
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


def optimizer_bytes(module: torch.nn.Module, optimizer: torch.optim.Optimizer | str | None) -> int:
    """Bytes of an optimizer's state after its first step, found by a step on meta tensors.

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
        shadows = [_shadow(p) for p in module.parameters() if p.requires_grad]
        return _state_bytes(OPTIMIZERS[optimizer.lower()](shadows)) if shadows else 0
    if optimizer.state:
        return _count(
            (v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)), set()
        )
    groups = [
        {**{k: v for k, v in g.items() if k != "params"}, "params": list(map(_shadow, g["params"]))}
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
