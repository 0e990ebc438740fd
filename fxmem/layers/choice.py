"""Which layers of a chain keep their input only: by rule, or by the solver within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from ..errors import InfeasibleBudget
from ..manager_config import TrainingMemoryConfig
from ..solvers.remat import RematProblem, check, solve
from .profile import LayerProfile
from .tape import Retain

NANOSECONDS = 1e9
TIME_LIMIT = 1.0  # seconds, for each of a few tries; chains of layers are short
ATTENTION = ("attention", "attn")
RESIDUAL = ("residual", "resnet", "resblock", "bottleneck", "basicblock")


def type_names(layer: nn.Module) -> str:
    """Class names of the layer and all inside it: a block with attention is of that type."""
    return " ".join(type(module).__name__ for module in layer.modules())


def selected_by_type(names: str, config: TrainingMemoryConfig) -> bool:
    """Does the config select layers of this type?"""
    wanted: tuple[str, ...] = ATTENTION if config.checkpoint_attention_layers else ()
    wanted += RESIDUAL if config.checkpoint_residual_blocks else ()
    return any(part in names.lower() for part in wanted)


def selected_by_rule(
    index: int, names: str, saved_bytes: int | None, config: TrainingMemoryConfig
) -> bool:
    """Every n-th layer, those of a type, and those that keep much (where that is known)."""
    much = saved_bytes is not None and saved_bytes > config.high_activation_memory_threshold_bytes
    return index % config.checkpoint_every_n_layers == 0 or selected_by_type(names, config) or much


def by_indices(selected: Sequence[int], total: int) -> tuple[Retain, ...]:
    """Selected layers keep their input; those after one are run again together with it."""
    chosen: set[int] = set(selected)
    found: list[Retain] = []
    for index in range(total):
        open_segment = bool(found) and found[-1] is not Retain.EVERYTHING
        if index in chosen:
            found.append(Retain.INPUT)
        else:
            found.append(Retain.NOTHING if open_segment else Retain.EVERYTHING)
    return tuple(found)


def by_solver(
    profiles: Sequence[LayerProfile],
    resident_bytes: int,
    input_bytes: int,
    budget: int | None,
    peak_of: Callable[[Sequence[Retain]], int],
) -> tuple[Retain, ...]:
    """The fastest choice found whose peak is within the budget.

    The solver plans on a chain of layers; each choice is then tried by ``peak_of``, which runs
    the step itself on fake tensors, from the fastest on.

    Raises
    ------
    InfeasibleBudget
        The budget cannot be met, as far as was found; names the least peak found.
    """
    problem, count = chain_problem(profiles, resident_bytes, input_bytes), len(profiles)
    if budget is None:
        return (Retain.EVERYTHING,) * count
    choices = [by_indices(range(0, count, n), count) for n in range(1, count + 1)]
    choices += [(Retain.INPUT,) * n + (Retain.EVERYTHING,) * (count - n) for n in range(count + 1)]
    # With a margin below the budget as well: the chain leaves out what autograd holds on to.
    for margin in (1.0, 0.95, 0.9):
        answer = solve(problem, int(margin * budget), time_limit=TIME_LIMIT, gap=2e-3)
        if answer.sequence:
            choices.append(read(answer.sequence, count))
    least: int | None = None

    def rank(choice: Sequence[Retain]) -> tuple[bool, int]:
        seconds, predicted = check(problem, sequence_of(choice))
        return predicted > 1.1 * budget, seconds  # those far over are tried last

    ranked = sorted(dict.fromkeys(choices), key=rank)
    for choice in ranked:
        peak = peak_of(choice)
        if peak <= budget:
            return choice
        least = peak if least is None else min(least, peak)
    blockers = [(f"layer {i}", p.saved_bytes) for i, p in enumerate(profiles)]
    raise InfeasibleBudget(budget, least, blockers)


def chain_problem(
    profiles: Sequence[LayerProfile], resident_bytes: int, input_bytes: int
) -> RematProblem:
    """Forward operators 0..n-1, the turn n, backward operators from layer n-1 down to 0.

    Storages of layer i: output 3i, saved 3i+1, parameter gradients 3i+2; the gradient of its
    output is 3n+1+i, and 3n is that of the chain's input. A backward pass takes as long as two
    forward passes (Chen et al., 2016).
    """
    n = len(profiles)
    size = [b for p in profiles for b in (p.output_bytes, p.saved_bytes, p.gradient_bytes)]
    size += [input_bytes, *(p.output_bytes for p in profiles)]
    names = [f"layer {i}" for i in range(n)]
    took = [round(p.seconds * NANOSECONDS) for p in profiles]
    before = [(3 * i - 3,) if i else () for i in range(n)]
    reads = [*before, (3 * n - 3,)]
    writes: list[tuple[int, ...]] = [(3 * i, 3 * i + 1) for i in range(n)] + [(4 * n,)]
    workspace = [max(0, p.forward_bytes - p.output_bytes - p.saved_bytes) for p in profiles] + [0]
    for i in reversed(range(n)):
        p = profiles[i]
        reads.append((*before[i], 3 * i + 1, 3 * n + 1 + i))
        writes.append((3 * i + 2, 3 * n + i))
        passed = input_bytes if i == 0 else profiles[i - 1].output_bytes
        workspace.append(max(0, p.backward_bytes - p.gradient_bytes - passed))
    return RematProblem(
        time=(*took, 0, *(2 * t for t in reversed(took))),
        size=tuple(size),
        reads=tuple(reads),
        writes=tuple(writes),
        workspace=tuple(workspace),
        turn=n,
        keep=frozenset({*(3 * i + 2 for i in range(n)), 3 * n}),
        resident_bytes=resident_bytes,
        names=(*names, "turn", *(f"backward of {x}" for x in reversed(names))),
    )


def sequence_of(choice: Sequence[Retain]) -> list[int]:
    """The schedule of a choice in `chain_problem`'s operators: what the tape does."""
    n = len(choice)
    sequence = [*range(n), n]
    pending: set[int] = {i for i in range(n) if choice[i] is not Retain.EVERYTHING}
    for i in reversed(range(n)):
        if i in pending:
            first = i
            while choice[first] is Retain.NOTHING:
                first -= 1
            sequence += range(first, i + 1)
            pending -= set(range(first, i + 1))
        sequence.append(2 * n - i)
    return sequence


def read(sequence: Sequence[int], count: int) -> tuple[Retain, ...]:
    """A choice from a schedule: layers run once keep all, else the run before tells."""
    seen: set[int] = set()
    choice = [Retain.EVERYTHING] * count
    previous = -1
    for operator in sequence:
        if operator < count and operator in seen:
            follows = previous == operator - 1 and choice[operator - 1] is not Retain.EVERYTHING
            choice[operator] = Retain.NOTHING if operator and follows else Retain.INPUT
        seen.add(operator)
        previous = operator
    return tuple(choice)
