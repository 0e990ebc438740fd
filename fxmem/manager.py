"""`TrainingMemoryManager`: for those who drive their layers in a loop."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor, nn

from .budget import Budget
from .errors import FxmemError
from .estimate import MIB, MemorySavingsEstimate, estimate_by_formula, estimate_by_layers
from .layer_choice import by_indices, by_solver, selected_by_rule, type_names
from .layer_profile import FakeChain, LayerProfile, profile_layers
from .manager_config import TrainingMemoryConfig
from .pool import ActivationPool, PoolStats
from .residents import count_residents
from .sharding import Shards, assign, describe, move
from .tape import Retain, Tape

log = logging.getLogger("fxmem")


@dataclass
class MemoryStatistics:
    """Counts since the manager was made.

    Attributes
    ----------
    forward_layers, backward_layers, recomputed_layers : int
        Layer runs of each kind.
    peak_input_bytes : int
        Most bytes of layer inputs that were kept at once.
    transfers, transferred_bytes : int
        Tensors moved between stages.
    """

    forward_layers: int = 0
    backward_layers: int = 0
    recomputed_layers: int = 0
    peak_input_bytes: int = 0
    transfers: int = 0
    transferred_bytes: int = 0


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
        self._layers = list(layers) if layers is not None else None
        self._closed = False
        self._tape = Tape()
        self._choice: tuple[Retain, ...] | None = None
        self._chosen_for: Hashable = None
        self._layer_types: list[str] | None = None
        self._solved: tuple[Hashable, tuple[Retain, ...]] | None = None
        self._statistics = MemoryStatistics() if self.config.track_memory_statistics else None
        self._pool: ActivationPool | None = None
        if self.config.use_activation_pooling:
            self._pool = ActivationPool(self.config.max_pool_memory_mb * MIB)
        self._shards: Shards | None = None
        self._pieces: list[int] = []
        if self._layers and self.config.num_devices > 1:
            self._shards = Shards.place(self._layers, self.config)

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
        return not self._closed and self._shards is not None

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
        return self._shards.stages if self._shards else ()

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
        self._chosen_for = None
        layers = layers if layers is not None else self._layers
        if layers is not None and len(layers) != total_layers:
            layers = None
        if layer_types is not None:
            self._layer_types = list(layer_types)
        elif self._layer_types is not None and len(self._layer_types) == total_layers:
            layer_types = self._layer_types  # as told before, when forward_sequence asks
        else:
            layer_types = [type_names(m) for m in layers] if layers else [""] * total_layers
        if total_layers < 0 or len(layer_types) != total_layers:
            raise FxmemError(f"{total_layers} layers, but {len(layer_types)} layer types")
        if not self.is_checkpointing_enabled:
            self._choice = (Retain.EVERYTHING,) * total_layers
        elif self.config.budget is not None:
            if not layers or example_input is None:
                raise FxmemError(
                    "a budget needs layers and an input to choose by: run forward_sequence first, "
                    "or give layers and example_input."
                )
            self._choice = self._solve(layers, example_input)
        else:
            selected = self._selected(layer_types, [None] * total_layers)
            if layers and example_input is not None and len(selected) < total_layers:
                saved = [p.saved_bytes for p in self._profile(layers, example_input)]
                selected = self._selected(layer_types, saved)
            self._choice = by_indices(selected, total_layers)
        return [i for i, retain in enumerate(self._choice) if retain is Retain.INPUT]

    def choose(self, layers: Sequence[nn.Module], example_input: Tensor) -> tuple[Retain, ...]:
        """What each of these layers keeps, for such an input."""
        self.compute_checkpoint_indices(len(layers), layers=layers, example_input=example_input)
        assert self._choice is not None
        return self._choice

    def should_checkpoint(self, layer_index: int) -> bool:
        """Does this layer keep its input only?"""
        if not self.is_checkpointing_enabled:
            return False
        if self._choice is not None and layer_index < len(self._choice):
            return self._choice[layer_index] is Retain.INPUT
        known = self._layers is not None and layer_index < len(self._layers)
        names = type_names(self._layers[layer_index]) if known and self._layers else ""
        return selected_by_rule(layer_index, names, None, self.config)

    def forward_with_checkpoint(self, layer: nn.Module, x: Tensor, layer_index: int) -> Tensor:
        """Run one layer; layers after a selected one are run again together with it."""
        self._check_open()
        return self._forward(layer, x, layer_index, self._retain(layer, layer_index))

    def forward_sequence(self, layers: Sequence[nn.Module], x: Tensor) -> Tensor:
        """Run layers in order."""
        self._check_open()
        if torch.is_grad_enabled():
            self._choose_once(layers, x)
        for index, layer in enumerate(layers):
            x = self._forward(layer, x, index, self._retain(layer, index))
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
        return self._backward(layer, grad_output, layer_index)

    def backward_sequence(self, layers: Sequence[nn.Module], grad_output: Tensor) -> Tensor | None:
        """Walk backward through layers, freeing what each kept."""
        self._check_open()
        gradient: Tensor | None = grad_output
        for index in reversed(range(len(layers))):
            if gradient is None:
                break
            gradient = self._backward(layers[index], gradient, index)
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
        before = self._pool.held_bytes
        tensor = self._pool.rent(shape, dtype=dtype, device=device)
        held, limit = self._pool.held_bytes, self._pool.limit_bytes
        threshold = self.config.memory_warning_threshold * limit
        if before <= threshold < held:
            log.warning("the activation pool is at %s", describe(held, limit))
        return tensor

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
        shards = self._sharded()
        layers = shards.layers
        if torch.is_grad_enabled():
            self._choose_once(layers, x)
        pipelined = self.config.use_pipeline_parallelism
        pieces = list(x.chunk(self.config.micro_batch_count)) if pipelined else [x]
        self._pieces = [len(piece) for piece in pieces] if pipelined else []
        for stage, run in shards.clock(len(pieces)):
            piece = self._transfer(pieces[run], shards.device_of(stage))
            first = True
            for index in shards.layers_of(stage):
                retain = self._retain(layers[index], index)
                if first and retain is Retain.NOTHING:
                    retain = Retain.INPUT  # a segment stays on one device
                piece = self._forward(layers[index], piece, index, retain, run)
                first = False
            pieces[run] = piece
        if not pipelined:
            return pieces[0]
        return torch.cat([p.detach() for p in pieces]).requires_grad_(torch.is_grad_enabled())

    def sharded_backward(self, grad_output: Tensor) -> Tensor | None:
        """Walk backward through the devices, the way that `sharded_forward` came."""
        shards = self._sharded()
        pieces: list[Tensor | None] = [grad_output]
        if self._pieces:
            pieces = list(grad_output.split(self._pieces))
        for stage, run in reversed(shards.clock(len(pieces))):
            piece = pieces[run]
            if piece is not None:
                piece = self._transfer(piece, shards.device_of(stage))
            for index in reversed(shards.layers_of(stage)):
                if piece is not None:
                    piece = self._backward(shards.layers[index], piece, index, run)
            pieces[run] = piece
        self._tape.clear()
        found = [piece for piece in pieces if piece is not None]
        if len(found) < len(pieces):
            return None
        return torch.cat(found) if len(found) > 1 else found[0]

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
        x = _example(layers[0], batch_size, sequence_length, hidden_size, dtype)
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

    def _forward(
        self, layer: nn.Module, x: Tensor, index: int, retain: Retain, run: Hashable = 0
    ) -> Tensor:
        output = self._tape.forward(layer, x, index, retain, run)
        if self._statistics is not None:
            counts = self._statistics
            counts.forward_layers += 1
            counts.peak_input_bytes = max(counts.peak_input_bytes, self._tape.input_bytes)
        return output

    def _backward(
        self, layer: nn.Module, gradient: Tensor, index: int, run: Hashable = 0
    ) -> Tensor | None:
        before = self._tape.recomputed
        passed = self._tape.backward(layer, gradient, index, run)
        if self._statistics is not None:
            self._statistics.backward_layers += 1
            self._statistics.recomputed_layers += self._tape.recomputed - before
        return passed

    def _retain(self, layer: nn.Module, index: int) -> Retain:
        if not self.is_checkpointing_enabled:
            return Retain.EVERYTHING
        if self._choice is not None and index < len(self._choice):
            return self._choice[index]
        names = type_names(layer)
        chosen = selected_by_rule(index, names, None, self.config)
        return Retain.INPUT if chosen else Retain.NOTHING

    def _choose_once(self, layers: Sequence[nn.Module], x: Tensor) -> None:
        """Choose by these layers and this input, unless that was done before."""
        if not self.is_checkpointing_enabled:
            return
        key = _key(layers, x)
        if self._chosen_for != key:
            self.choose(layers, x)
            self._chosen_for = key

    def _selected(self, names: Sequence[str], saved: Sequence[int | None]) -> list[int]:
        rows = enumerate(zip(names, saved, strict=True))
        return [i for i, (name, size) in rows if selected_by_rule(i, name, size, self.config)]

    def _profile(self, layers: Sequence[nn.Module], x: Tensor) -> tuple[LayerProfile, ...]:
        return profile_layers(layers, x, timed=self.config.budget is not None)

    def _solve(self, layers: Sequence[nn.Module], x: Tensor) -> tuple[Retain, ...]:
        assert isinstance(self.config.budget, Budget)
        key = _key(layers, x)
        if self._solved is not None and self._solved[0] == key:
            return self._solved[1]
        residents = count_residents(nn.ModuleList(layers), (x,))
        held = residents.total - residents.gradients
        chain = FakeChain.of(layers, x)
        # A share is of this same loop with nothing recomputed.
        baseline = held + chain.peak_of_choice((Retain.EVERYTHING,) * len(layers))
        choice = by_solver(
            self._profile(layers, x),
            held,
            x.nbytes,
            self.config.budget.resolve(baseline),
            lambda choice: held + chain.peak_of_choice(choice),
        )
        self._solved = key, choice
        return choice

    def _sharded(self) -> Shards:
        self._check_open()
        if self._shards is None:
            raise FxmemError(
                "there is nothing sharded: give the manager its layers, and num_devices or devices "
                "in the config."
            )
        return self._shards

    def _transfer(self, tensor: Tensor, device: torch.device) -> Tensor:
        moved = move(tensor, device)
        if self._statistics is not None:
            self._statistics.transfers += 1
            self._statistics.transferred_bytes += moved.nbytes
        return moved


def _key(layers: Sequence[nn.Module], x: Tensor) -> Hashable:
    return tuple(map(id, layers)), tuple(x.shape), x.dtype, x.device


def _example(
    first: nn.Module, batch: int, length: int, hidden: int | None, dtype: torch.dtype
) -> Tensor:
    if isinstance(first, nn.Embedding):
        return torch.zeros(batch, length, dtype=torch.long)
    if hidden is None:
        weights = [p for p in first.parameters() if p.dim() >= 2]
        if not weights:
            raise FxmemError("the first layer does not tell its width: give hidden_size.")
        hidden = weights[0].shape[-1]
    return torch.zeros(batch, length, hidden, dtype=dtype)
