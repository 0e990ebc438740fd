"""`TrainingMemoryManager`: for those who drive their layers in a loop."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from .errors import FxmemError
from .layers.counted_tape import CountedTape, MemoryStatistics
from .layers.estimate import (
    MIB,
    MemorySavingsEstimate,
    estimate_by_formula,
    estimate_by_layers,
    example_input_of,
)
from .layers.selector import LayerSelector
from .layers.sharded_walk import ShardedWalk
from .layers.sharding import Shards, assign
from .layers.tape import Retain
from .layers.watched_pool import WatchedPool
from .manager_config import TrainingMemoryConfig
from .pool import ActivationPool, PoolStats

__all__ = ["MemoryStatistics", "TrainingMemoryManager"]


class TrainingMemoryManager:
    """Runs layers forward and backward in less memory, with the same numbers.

    Parameters
    ----------
    config : TrainingMemoryConfig, optional
    layers : sequence of nn.Module, optional
        Needed for sharding: they are moved to their devices now.

    Notes
    -----
    Each layer takes one tensor and returns one. What a forward method returns is cut from the
    graph and is a leaf: compute the loss from it, call ``loss.backward()``, and give its
    ``.grad`` to the backward method. Use as a context manager, or call `close`.
    """

    def __init__(
        self,
        config: TrainingMemoryConfig | None = None,
        layers: Sequence[nn.Module] | None = None,
    ) -> None:
        self.config = config or TrainingMemoryConfig()
        self._closed = False
        self._statistics = MemoryStatistics() if self.config.track_memory_statistics else None
        self._tape = CountedTape(self._statistics)
        held = list(layers) if layers is not None else None
        self._selector = LayerSelector(self.config, held)
        self._pool: ActivationPool | None = None
        if self.config.use_activation_pooling:
            limit = self.config.max_pool_memory_mb * MIB
            self._pool = WatchedPool(limit, self.config.memory_warning_threshold)
        self._walk: ShardedWalk | None = None
        if held and self.config.num_devices > 1:
            shards = Shards.place(held, self.config)
            self._walk = ShardedWalk(shards, self.config, self._selector, self._tape)

    @property
    def is_checkpointing_enabled(self) -> bool:
        """Do selected layers keep their input only?"""
        return not self._closed and self.config.use_gradient_checkpointing

    @property
    def is_pooling_enabled(self) -> bool:
        """Is there a pool?"""
        return self._pool is not None

    @property
    def is_sharding_enabled(self) -> bool:
        """Are there layers, and several devices for them?"""
        return not self._closed and self._walk is not None

    @property
    def pool_stats(self) -> PoolStats | None:
        """Of the pool; None without one."""
        return self._pool.stats if self._pool else None

    @property
    def statistics(self) -> MemoryStatistics | None:
        """Counts so far; None unless the config tracks them."""
        return self._statistics

    @property
    def device_assignments(self) -> tuple[int, ...]:
        """Position among the devices of each layer; empty without sharding."""
        return self._walk.shards.stages if self._walk else ()

    def compute_checkpoint_indices(
        self,
        total_layers: int,
        layer_types: Sequence[str] | None = None,
        *,
        layers: Sequence[nn.Module] | None = None,
        example_input: Tensor | None = None,
    ) -> list[int]:
        """Select the layers that keep their input only.

        Parameters
        ----------
        total_layers : int
        layer_types : sequence of str, optional
            Such as "attention" or "residual"; else taken from the layers, if known.
        layers : sequence of nn.Module, optional
            Else those that the manager was made with.
        example_input : Tensor, optional
            With it the activation threshold and the budget take part; `forward_sequence`
            gives its own input.

        Raises
        ------
        InfeasibleBudget
        FxmemError
            A budget is set and layers or input are missing.
        """
        self._check_open()
        choice = self._selector.choose(total_layers, layer_types, layers, example_input)
        return [i for i, retain in enumerate(choice) if retain is Retain.INPUT]

    def should_checkpoint(self, layer_index: int) -> bool:
        """Does this layer keep its input only?"""
        return not self._closed and self._selector.keeps_input(layer_index)

    def forward_with_checkpoint(self, layer: nn.Module, x: Tensor, layer_index: int) -> Tensor:
        """Run one layer; layers after a selected one are run again together with it."""
        self._check_open()
        retain = self._selector.retain(layer, layer_index)
        return self._tape.forward(layer, x, layer_index, retain)

    def forward_sequence(self, layers: Sequence[nn.Module], x: Tensor) -> Tensor:
        """Run layers in order."""
        self._check_open()
        if torch.is_grad_enabled():
            self._selector.choose_once(layers, x)
        for index, layer in enumerate(layers):
            x = self._tape.forward(layer, x, index, self._selector.retain(layer, index))
        return x

    def backward_with_recompute(
        self, layer: nn.Module, grad_output: Tensor, layer_index: int
    ) -> Tensor | None:
        """Gradient of the layer's input, None where it has none; parameters' accumulate.

        Raises
        ------
        FxmemError
            The layer was not run forward, or its backward pass was run already.
        """
        self._check_open()
        return self._tape.backward(layer, grad_output, layer_index)

    def backward_sequence(self, layers: Sequence[nn.Module], grad_output: Tensor) -> Tensor | None:
        """Walk backward through layers, freeing what each kept."""
        self._check_open()
        gradient: Tensor | None = grad_output
        for index in reversed(range(len(layers))):
            if gradient is None:
                break
            gradient = self._tape.backward(layers[index], gradient, index)
        self._tape.clear()  # layers before one that passes no gradient on
        return gradient

    def clear_checkpoints(self) -> None:
        """Forget what the layers kept."""
        self._tape.clear()

    def rent_tensor(
        self,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Uninitialised tensor from the pool; without a pool, a new one.

        Raises
        ------
        PoolError
            The pool's limit would be passed.
        """
        self._check_open()
        if self._pool is None:
            return torch.empty(tuple(shape), dtype=dtype, device=device)
        return self._pool.rent(shape, dtype=dtype, device=device)

    def return_tensor(self, tensor: Tensor) -> None:
        """Give a rented tensor back; without a pool, nothing.

        Raises
        ------
        PoolError
            It was returned before, or is not from the pool.
        """
        self._check_open()
        if self._pool is not None:
            self._pool.give_back(tensor)

    def pool_memory_usage(self) -> int:
        """Bytes that the pool holds, idle and rented."""
        return self._pool.held_bytes if self._pool else 0

    def sharded_forward(self, x: Tensor) -> Tensor:
        """Run the manager's layers, each on its device.

        In microbatches, split from the first dimension, where the config asks for a pipeline:
        stage s runs microbatch m at clock s + m (Huang et al., 2019, GPipe). Draws then come in
        another order, and BatchNorm sees microbatches.
        """
        return self._sharded().forward(x)

    def sharded_backward(self, grad_output: Tensor) -> Tensor | None:
        """Walk backward through the devices, the way that `sharded_forward` came."""
        return self._sharded().backward(grad_output)

    def estimate_memory_savings(
        self,
        model_parameters: int,
        batch_size: int,
        sequence_length: int = 512,
        *,
        hidden_size: int | None = None,
        layers: Sequence[nn.Module] | None = None,
        dtype: torch.dtype = torch.float32,
        optimizer: str = "adamw",
    ) -> MemorySavingsEstimate:
        """Peak bytes of a training step on the fullest device, without and with this config.

        Parameters
        ----------
        model_parameters : int
            Number of parameters; with ``layers`` theirs count instead.
        batch_size, sequence_length : int
        hidden_size : int, optional
            Width; else guessed from the number of parameters, or from the first layer.
        layers : sequence of nn.Module, optional
            Given, they are run on fake tensors of shape (batch, sequence, hidden), or on token
            numbers if the first is an embedding, and each storage is counted; else the formula
            of Korthikanti et al. (2022) for transformers.
        dtype : torch.dtype
            Of parameters and activations.
        optimizer : str
            Its state counts.
        """
        self._check_open()
        if layers is None:
            return estimate_by_formula(
                self.config,
                model_parameters,
                batch_size,
                sequence_length,
                hidden_size,
                dtype,
                optimizer,
            )
        x = example_input_of(layers[0], batch_size, sequence_length, hidden_size, dtype)
        stages = assign(layers, self.config)
        return estimate_by_layers(
            self.config, stages, layers, x, optimizer, self.pool_memory_usage()
        )

    def close(self) -> None:
        """Free what the manager holds; using it afterwards is an error, closing again is not."""
        self._closed = True
        self._tape.clear()
        if self._pool is not None:
            self._pool.evict()
        self._pool = None

    def __enter__(self) -> TrainingMemoryManager:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise FxmemError("the TrainingMemoryManager is closed; make a new one.")

    def _sharded(self) -> ShardedWalk:
        self._check_open()
        if self._walk is None:
            raise FxmemError(
                "there is nothing sharded: give the manager its layers, and num_devices or devices "
                "in the config."
            )
        return self._walk
