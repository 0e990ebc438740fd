"""Parameters and buffers of a model by name: whose they are, and how they come to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import FxmemError
from ..passes.stages import Stage
from ..residents import OPTIMIZERS, optimizer_bytes
from ..storages import tensor_bytes
from .trace import PREFIX


class Names:
    """Tensors of a model by name; a tied parameter goes by the first of its names."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.first: dict[str, str] = {}
        by_id: dict[int, str] = {}
        both = (model.named_parameters, model.named_buffers)
        for name, tensor in (p for each in both for p in each(remove_duplicate=False)):
            self.first[name] = by_id.setdefault(id(tensor), name)
            self.tensors.setdefault(self.first[name], tensor)

    def own(self, target: str) -> str:
        """The name that a parameter or buffer of the trace goes by."""
        return self.first[target.removeprefix(PREFIX)]

    def held(self, stages: Sequence[Stage]) -> tuple[list[str], list[str]]:
        """Parameters and buffers that some stages hold."""
        found = []
        for kind in ("parameter", "buffer"):
            told = [n for s in stages for n in s.names(kind)]
            if kind == "parameter":
                told += [n for s in stages for n in s.weights]
            found.append(list(dict.fromkeys(map(self.own, told))))
        return found[0], found[1]

    def shared_out(self, ranks: Sequence[Sequence[Stage]]) -> list[tuple[list[str], list[str]]]:
        """Parameters and buffers of each rank, given its stages.

        What no stage reads stays with the first rank, so that the state is complete.
        """
        held = [self.held(stages) for stages in ranks]
        for name in self._unused(held):
            held[0][0 if isinstance(self.tensors[name], torch.nn.Parameter) else 1].append(name)
        return held

    def resident_bytes(
        self, ranks: Sequence[Sequence[Stage]], optimizer: str | None
    ) -> tuple[int, ...]:
        """Of each rank: parameters with all that goes with them, and buffers."""
        held = [self.held(stages) for stages in ranks]
        found = [
            sum(self.weight_bytes(name, optimizer) for name in own)
            + sum(tensor_bytes(self.tensors[name]) for name in buffers)
            for own, buffers in held
        ]
        # They never have gradients, nor state.
        found[0] += sum(tensor_bytes(self.tensors[name]) for name in self._unused(held))
        return tuple(found)

    def _unused(self, held: Sequence[tuple[list[str], list[str]]]) -> list[str]:
        known = {n for own, buffers in held for n in (*own, *buffers)}
        return [name for name in self.tensors if name not in known]

    def weight_bytes(self, name: str, optimizer: str | None) -> int:
        """Weight, gradient and optimizer state."""
        tensor = self.tensors[name]
        size = tensor_bytes(tensor)
        if not tensor.requires_grad:
            return size
        if optimizer is None:
            return 2 * size
        if optimizer.lower() not in OPTIMIZERS:
            return 2 * size + optimizer_bytes(torch.nn.Module(), optimizer)  # says what is known
        holder = torch.nn.Module()
        holder.weight = torch.nn.Parameter(torch.empty_like(tensor, device="meta"))
        return 2 * size + optimizer_bytes(holder, optimizer)

    def renamed(self, stage: Stage) -> Stage:
        """The stage with the model's own names."""
        sources = tuple(
            replace(s, name=self.own(str(s.name))) if s.kind in ("parameter", "buffer") else s
            for s in stage.sources
        )
        return replace(
            stage,
            sources=sources,
            weights=tuple(map(self.own, stage.weights)),
            written=tuple(map(self.own, stage.written)),
        )

    def keep(
        self, model: torch.nn.Module, own: list[str], buffers: list[str]
    ) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.Tensor]]:
        """Materialise what is this rank's and drop the rest from the model."""
        kept: dict[str, Any] = {}
        dropped: dict[str, torch.Tensor] = {}  # what is tied stays so
        fresh = set()
        for name in (*own, *buffers):
            tensor = self.tensors[name]
            if tensor.is_meta:
                empty = torch.empty_like(tensor, device="cpu")
                fresh.add(name)
                if isinstance(tensor, torch.nn.Parameter):
                    empty = torch.nn.Parameter(empty, tensor.requires_grad)
                tensor = empty
            kept[name] = tensor
        for path, module in model.named_modules():
            tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for table in tables:
                for key, value in list(table.items()):
                    if value is None:
                        continue
                    name = self.first[f"{path}.{key}" if path else key]
                    if name in kept:
                        table[key] = kept[name]
                    else:
                        table[key] = dropped.setdefault(name, _without_data(value))
        self._initialise(model, fresh)
        self.tensors = {n: t.to("meta") for n, t in self.tensors.items()}
        return {n: kept[n] for n in own}, {n: kept[n] for n in buffers}

    def _initialise(self, model: torch.nn.Module, fresh: set[str]) -> None:
        for path, module in model.named_modules():
            direct = {**module._parameters, **module._buffers}
            wanted = {
                self.first[f"{path}.{k}" if path else k] for k, v in direct.items() if v is not None
            } & fresh
            if not wanted:
                continue
            reset = getattr(module, "reset_parameters", None)
            if reset is None:
                raise FxmemError(
                    f"{', '.join(sorted(wanted))} lie on meta, and {type(module).__name__} has no "
                    "reset_parameters to initialise them. Give them values before: build that "
                    "module on the CPU."
                )
            reset()
            fresh -= wanted


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, tensor.requires_grad)
    return empty
