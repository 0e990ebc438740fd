"""Run training steps, and keep everything that could differ."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fxmem.measure import loss_of
from tests.cases import Case

Step = dict[str, Tensor | None]


def run(call: Callable[..., Any], module: nn.Module, case: Case, steps: int = 2) -> list[Step]:
    """Train ``steps`` steps on copies of the case's inputs, without an optimizer.

    Parameters
    ----------
    call : callable
        What runs forward: ``module`` itself or the optimised module around it.
    module : nn.Module
        Holds the parameters and buffers.
    """
    args, kwargs = copy.deepcopy((case.args, dict(case.kwargs)))
    given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
    torch.manual_seed(7)
    taken = []
    for _ in range(steps):
        for tensor in (*module.parameters(), *given):
            tensor.grad = None
        output = call(*args, **kwargs)
        loss_of(output).backward()
        step: Step = {}  # only now: what is made between forward and backward counts
        for place, value in enumerate(tree_leaves(output)):
            step[f"output {place}"] = value.detach().clone() if isinstance(value, Tensor) else None
        step |= {f"gradient {name}": p.grad for name, p in module.named_parameters()}
        step |= {f"buffer {name}": b.clone() for name, b in module.named_buffers()}
        step |= {f"input {i}": v.detach().clone() for i, v in enumerate(given)}
        step |= {f"input gradient {i}": v.grad for i, v in enumerate(given)}
        step["generator"] = torch.get_rng_state()
        taken.append(step)
    return taken


def differences(found: list[Step], wanted: list[Step]) -> list[str]:
    """Names of all that is not bit-equal."""
    assert len(found) == len(wanted)
    names = []
    for number, (new, old) in enumerate(zip(found, wanted, strict=True)):
        assert new.keys() == old.keys()
        names += [f"{n} of step {number}" for n in new if not equal(new[n], old[n])]
    return names


def equal(new: Tensor | None, old: Tensor | None) -> bool:
    """Both None, or bit-equal in dtype, shape and every value."""
    if new is None or old is None:
        return new is None and old is None
    return new.dtype == old.dtype and torch.equal(new, old)


def state_of(module: nn.Module, *inputs: Any) -> list[Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [v for v in tree_leaves(inputs) if isinstance(v, Tensor)]
    return [t.detach().clone() for t in tensors] + [torch.get_rng_state()]
