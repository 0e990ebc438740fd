"""How much a `TrainingMemoryConfig` saves: a published formula, or the layers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil

import torch
from torch import Tensor, nn

from ..errors import FxmemError
from ..manager_config import TrainingMemoryConfig
from ..residents import count_residents
from .profile import FakeChain, plain_step
from .selector import LayerSelector

MIB = 2**20
# Values of optimizer state for each parameter.
STATE_VALUES = {"adam": 2, "adamw": 2, "adagrad": 1, "rmsprop": 1, "sgd": 0}
# Of GPT-3 (Brown et al., 2020, table 2.1): width 12288 at 96 layers; and heads as in GPT-2.
WIDTH_PER_LAYER, HEAD_WIDTH = 128, 64


@dataclass(frozen=True)
class MemorySavingsEstimate:
    """Peak bytes of a training step on the fullest device, without and with the config.

    Attributes
    ----------
    without_optimization, with_optimization, savings_bytes : int
        The saving is negative where only the pool, which holds what it may lend again, counts.
    savings_percentage : float
        Of ``without_optimization``.
    checkpointing_enabled, pooling_enabled, sharding_enabled : bool
    """

    without_optimization: int
    with_optimization: int
    checkpointing_enabled: bool
    pooling_enabled: bool
    sharding_enabled: bool

    @property
    def savings_bytes(self) -> int:
        """Bytes saved."""
        return self.without_optimization - self.with_optimization

    @property
    def savings_percentage(self) -> float:
        """Share saved, in percent."""
        return 100 * self.savings_bytes / max(1, self.without_optimization)


def layer_activation_bytes(batch: int, length: int, hidden: int, heads: int, item: int) -> int:
    """Activations of one transformer layer with dropout.

    Korthikanti et al. (2022), "Reducing activation recomputation in large transformer models",
    section 4.1: sbh(34 + 5as/h) bytes at two bytes a value. Taken apart by kind, for any
    ``item`` bytes a value: sbh(16 item + 2) + a s² b (2 item + 1), the masks at one byte.
    """
    linear = length * batch * hidden * (16 * item + 2)
    return linear + heads * length**2 * batch * (2 * item + 1)


def estimate_by_formula(
    config: TrainingMemoryConfig,
    parameters: int,
    batch: int,
    length: int,
    hidden: int | None,
    dtype: torch.dtype,
    optimizer: str,
) -> MemorySavingsEstimate:
    """Estimate for a transformer of that many parameters, 12 h² in each layer."""
    if min(parameters, batch, length, hidden or 1) < 1:
        raise FxmemError("model_parameters, batch_size, sequence_length, hidden_size must be > 0")
    if optimizer not in STATE_VALUES:
        raise FxmemError(f"optimizer={optimizer!r} is not one of {', '.join(STATE_VALUES)}")
    item = dtype.itemsize
    if hidden is None:
        width = (parameters * WIDTH_PER_LAYER / 12) ** (1 / 3)
        hidden = max(1, round(width / HEAD_WIDTH)) * HEAD_WIDTH
    layers = max(1, round(parameters / (12 * hidden**2)))
    one = layer_activation_bytes(batch, length, hidden, max(1, hidden // HEAD_WIDTH), item)
    boundary = batch * length * hidden * item
    states = parameters * item * (2 + STATE_VALUES[optimizer])  # parameters and gradients too
    without = states + layers * one

    devices = min(config.num_devices, layers)
    held = ceil(layers / devices)
    kept = held * one
    if config.use_gradient_checkpointing:
        every = 1 if config.checkpoint_attention_layers else config.checkpoint_every_n_layers
        if one > config.high_activation_memory_threshold_bytes:
            every = 1
        segment = min(every, held)
        if config.use_pipeline_parallelism:  # one microbatch at a time is run again
            again = ceil(segment * one / config.micro_batch_count)
        else:
            again = segment * one
        kept = min(kept, ceil(held / every) * boundary + again)
    total = ceil(states / devices) + kept
    if config.use_activation_pooling:  # a tensor of each layer boundary's size, rented and kept
        total += min(config.max_pool_memory_mb * MIB, boundary)
    return _estimate(config, without, total)


def estimate_by_layers(
    config: TrainingMemoryConfig,
    stages: Sequence[int],
    layers: Sequence[nn.Module],
    x: Tensor,
    optimizer: str,
    pooled_bytes: int,
) -> MemorySavingsEstimate:
    """Estimate from the step itself, run on fake tensors with every storage counted.

    Layers on several devices: each device's share, gone through by itself; the fullest counts.
    """

    def total(part: Sequence[nn.Module], given: Tensor, managed: bool) -> tuple[int, Tensor]:
        chain = FakeChain.of(part, given)
        choice = LayerSelector(config.on_one_device()).choose(
            len(part), layers=part, example_input=given
        )
        peak = chain.peak_of_choice(choice) if managed else chain.peak(plain_step)
        following = chain.x
        with torch.no_grad(), chain.mode:
            for layer in chain.layers:
                following = layer(following)
        following = torch.empty(following.shape, dtype=following.dtype, device=given.device)
        module = nn.ModuleList(part)
        residents = count_residents(module, (given,), optimizer)
        return residents.total - residents.gradients + peak, following

    without, _ = total(layers, x, managed=False)
    most, given = 0, x
    for _, group in groupby(range(len(layers)), key=lambda i: stages[i]):
        part = [layers[i] for i in group]
        one, given = total(part, given, managed=True)
        most = max(most, one)
    return _estimate(config, without, most + pooled_bytes)


def example_input_of(
    first: nn.Module, batch: int, length: int, hidden: int | None, dtype: torch.dtype
) -> Tensor:
    """An input for the first layer: (batch, length) tokens, or (batch, length, hidden) zeros.

    Raises
    ------
    FxmemError
        ``hidden`` is left out, and the layer's weights do not tell it.
    """
    if isinstance(first, nn.Embedding):
        return torch.zeros(batch, length, dtype=torch.long)
    if hidden is None:
        weights = [p for p in first.parameters() if p.dim() >= 2]
        if not weights:
            raise FxmemError("the first layer does not tell its width: give hidden_size.")
        hidden = weights[0].shape[-1]
    return torch.zeros(batch, length, hidden, dtype=dtype)


def _estimate(config: TrainingMemoryConfig, without: int, total: int) -> MemorySavingsEstimate:
    return MemorySavingsEstimate(
        without_optimization=without,
        with_optimization=total,
        checkpointing_enabled=config.use_gradient_checkpointing,
        pooling_enabled=config.use_activation_pooling,
        sharding_enabled=config.num_devices > 1,
    )
