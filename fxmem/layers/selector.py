"""What each layer of a loop keeps, as `TrainingMemoryConfig` says."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor, nn

from ..budget import Budget
from ..errors import FxmemError
from ..manager_config import TrainingMemoryConfig
from ..residents import count_residents
from .choice import by_indices, by_solver, selected_by_rule, type_names
from .profile import FakeChain, profile_layers
from .tape import Retain

Choice = tuple[Retain, ...]


class LayerSelector:
    """Chooses once for the same layers and input, and remembers.

    Parameters
    ----------
    config : TrainingMemoryConfig
    layers : sequence of nn.Module, optional
        Whose types count where none are given.
    """

    def __init__(
        self, config: TrainingMemoryConfig, layers: Sequence[nn.Module] | None = None
    ) -> None:
        self.config = config
        self._layers = layers
        self._types: list[str] | None = None
        self._choice: Choice | None = None
        self._chosen_for: Hashable = None
        self._solved: tuple[Hashable, Choice] | None = None

    def choose(
        self,
        total: int,
        layer_types: Sequence[str] | None = None,
        layers: Sequence[nn.Module] | None = None,
        example_input: Tensor | None = None,
    ) -> Choice:
        """What each of ``total`` layers keeps.

        Raises
        ------
        InfeasibleBudget
        FxmemError
            A budget is set and layers or input are missing, or numbers do not agree.
        """
        self._chosen_for = None
        layers = layers if layers is not None else self._layers
        if layers is not None and len(layers) != total:
            layers = None
        names = self._names(total, layer_types, layers)
        if not self.config.use_gradient_checkpointing:
            self._choice = (Retain.EVERYTHING,) * total
        elif self.config.budget is None:
            self._choice = self._by_rule(names, layers, example_input)
        elif layers and example_input is not None:
            self._choice = self._within_budget(layers, example_input)
        else:
            raise FxmemError(
                "a budget needs layers and an input to choose by: run forward_sequence first, "
                "or give layers and example_input."
            )
        return self._choice

    def choose_once(self, layers: Sequence[nn.Module], x: Tensor) -> None:
        """Choose by these layers and this input, unless that was done before."""
        if not self.config.use_gradient_checkpointing:
            return
        key = _key(layers, x)
        if self._chosen_for != key:
            self.choose(len(layers), layers=layers, example_input=x)
            self._chosen_for = key

    def keeps_input(self, index: int) -> bool:
        """Is this layer selected: does it keep its input only?"""
        if not self.config.use_gradient_checkpointing:
            return False
        if (chosen := self._chosen(index)) is not None:
            return chosen is Retain.INPUT
        known = self._layers is not None and index < len(self._layers)
        names = type_names(self._layers[index]) if known and self._layers else ""
        return selected_by_rule(index, names, None, self.config)

    def retain(self, layer: nn.Module, index: int) -> Retain:
        """What this layer keeps in the run that starts now."""
        if not self.config.use_gradient_checkpointing:
            return Retain.EVERYTHING
        if (chosen := self._chosen(index)) is not None:
            return chosen
        selected = selected_by_rule(index, type_names(layer), None, self.config)
        return Retain.INPUT if selected else Retain.NOTHING

    def _chosen(self, index: int) -> Retain | None:
        known = self._choice is not None and index < len(self._choice)
        return self._choice[index] if known and self._choice else None

    def _names(
        self, total: int, given: Sequence[str] | None, layers: Sequence[nn.Module] | None
    ) -> Sequence[str]:
        """Types as given now, as given before (when the loop itself asks), or of the layers."""
        names: Sequence[str]
        if given is not None:
            names = self._types = list(given)
        elif self._types is not None and len(self._types) == total:
            names = self._types
        else:
            names = [type_names(m) for m in layers] if layers else [""] * total
        if total < 0 or len(names) != total:
            raise FxmemError(f"{total} layers, but {len(names)} layer types")
        return names

    def _by_rule(
        self, names: Sequence[str], layers: Sequence[nn.Module] | None, x: Tensor | None
    ) -> Choice:
        total = len(names)
        selected = self._selected(names, [None] * total)
        if layers and x is not None and len(selected) < total:
            saved = [p.saved_bytes for p in profile_layers(layers, x)]
            selected = self._selected(names, saved)
        return by_indices(selected, total)

    def _selected(self, names: Sequence[str], saved: Sequence[int | None]) -> list[int]:
        rows = enumerate(zip(names, saved, strict=True))
        return [i for i, (name, size) in rows if selected_by_rule(i, name, size, self.config)]

    def _within_budget(self, layers: Sequence[nn.Module], x: Tensor) -> Choice:
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
            profile_layers(layers, x, timed=True),
            held,
            x.nbytes,
            self.config.budget.resolve(baseline),
            lambda choice: held + chain.peak_of_choice(choice),
        )
        self._solved = key, choice
        return choice


def _key(layers: Sequence[nn.Module], x: Tensor) -> Hashable:
    return tuple(map(id, layers)), tuple(x.shape), x.dtype, x.device
