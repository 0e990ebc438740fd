"""Where to cut a step for several devices: cuts are planned until one fits every budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, pairwise

import torch.fx as fx

from ..costs import Cost
from ..errors import InfeasibleBudget, TraceError
from ..lower import Lowered, lower
from ..passes.shard import stage_of
from ..planning import Options, graph_hash, with_replays
from ..scheduling import find_schedule
from ..solvers.partition import Device, Item, partition
from ..solvers.remat import RematSolution
from ..storages import tensor_bytes
from ..trace import StepTrace
from .chain import FEWER, StageChain, stage_chain
from .cuts import NO_LIMIT
from .shard_lower import LoweredStage, assign, lower_stage, shard_trace, sides
from .times import BANDWIDTH

#: Given the stage of each placeholder, by name: bytes held throughout in each stage.
Residents = Callable[[Mapping[str, int]], Sequence[int]]

# Ways to cut that are planned, and with a plan: the fastest is taken.
_MOST_TRIED, _ENOUGH = 8, 2
# What is tried where no estimate fits: the best of all cuts between so many pieces.
_PIECES, _MOST_CUTS = 24, 3000

# The cut that an error was about, by hash of the graph: a budget that it named must be met when
# it is asked for.
_NAMED: dict[str, Cut] = {}
_MOST_REMEMBERED = 32


@dataclass(frozen=True)
class Cut:
    """Where to cut, and where each stage goes.

    Attributes
    ----------
    pieces : int or None
        Of the chain that is cut, as of `stage_chain`.
    cuts : tuple of int
        First item of each stage but the first.
    order : tuple of int
        Number of the device of each stage.
    """

    pieces: int | None
    cuts: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Sharded:
    """A step cut into stages, with a schedule for each.

    Attributes
    ----------
    cut : Cut
    trace : StepTrace
        With copies between stages.
    costs : mapping
    lowered : Lowered
        The whole step.
    stages : tuple of LoweredStage
    solutions : tuple of RematSolution
        Of each stage.
    """

    cut: Cut
    trace: StepTrace
    costs: Mapping[fx.Node, Cost]
    lowered: Lowered
    stages: tuple[LoweredStage, ...]
    solutions: tuple[RematSolution, ...]

    @property
    def time(self) -> int:
        """Nanoseconds of the step; one stage runs at a time."""
        return sum(s.total_time for s in self.solutions)

    @property
    def recomputes(self) -> bool:
        """Does any stage run an operator twice?"""
        return any(len(s.sequence) > len(set(s.sequence)) for s in self.solutions)

    @property
    def sequence(self) -> tuple[int, ...]:
        """Forward parts of all stages, the turn, and their backward parts from last to first."""
        turn = self.lowered.problem.turn
        assert turn is not None
        parts = []
        for stage, solution in zip(self.stages, self.solutions, strict=True):
            numbers = [stage.numbers[v] for v in solution.sequence]
            at = numbers.index(turn)
            parts.append((numbers[:at], numbers[at + 1 :]))
        forward = [v for before, _ in parts for v in before]
        backward = [v for _, after in reversed(parts) for v in after]
        return (*forward, turn, *backward)


class Chooser:
    """Tries cuts until one fits all devices, and takes the fastest of a few that do."""

    def __init__(
        self,
        trace: StepTrace,
        costs: Mapping[fx.Node, Cost],
        residents: Residents,
        budgets: Sequence[int | None],
        options: Options,
    ) -> None:
        self.trace, self.costs, self.residents = trace, costs, residents
        self.budgets, self.options = budgets, options
        self.chains: dict[int | None, StageChain] = {}
        self.state_bytes = self._state_bytes()
        stages = len(budgets) * (_ENOUGH + 1)
        self.each = replace(options, time_limit=options.time_limit / stages)

    def choose(self) -> Sharded:
        """The fastest plan found.

        Raises
        ------
        InfeasibleBudget
            None was found.
        TraceError
            There is no place to cut.
        """
        key = graph_hash(self.trace)
        found: list[Sharded] = []
        failed: list[_Failure] = []
        for cut, stages in self._distinct(key):
            result = self._plan(cut, stages)
            if isinstance(result, _Failure):
                failed.append(result)
            elif result is not None:
                found.append(result)
            if len(found) == _ENOUGH or len(found) + len(failed) >= _MOST_TRIED:
                break
            if found and not found[-1].recomputes:
                break
        if found:
            return min(found, key=lambda s: s.time)
        if not failed:
            raise TraceError(
                f"the step cannot be cut into {len(self.budgets)} stages: it is too short, or "
                "values with gaps in memory cross at each cut. Give fewer devices."
            )
        least = min(failed, key=lambda f: (len(f.errors), f.short))
        while len(_NAMED) >= _MOST_REMEMBERED:
            del _NAMED[next(iter(_NAMED))]
        _NAMED[key] = least.cut
        raise max(least.errors, key=_shortfall)

    def _distinct(self, key: str) -> Iterator[tuple[Cut, dict[fx.Node, int]]]:
        """Cuts and the stage of each operator, each such way once."""
        seen = set()
        for cut in self._cuts(key):
            stages = assign(self.trace, self._chain(cut.pieces), cut.cuts)
            way = (cut.order, tuple(stages[n] for n in self.trace.operators if n in stages))
            if way not in seen:
                seen.add(way)
                yield cut, stages

    def _chain(self, pieces: int | None) -> StageChain:
        if pieces not in self.chains:
            memory = [NO_LIMIT if b is None else b for b in self.budgets]
            devices = tuple(Device(m, bandwidth=BANDWIDTH) for m in memory)
            self.chains[pieces] = stage_chain(
                self.trace, self.costs, devices, self.state_bytes, pieces
            )
        return self.chains[pieces]

    def _state_bytes(self) -> float:
        """Bytes of optimizer state for each byte of parameters, about."""
        sources = self.trace.joint.graph.find_nodes(op="placeholder")
        held = sum(tensor_bytes(n.meta["val"]) for n in sources if n not in self.trace.tangents)
        gradients = self.trace.storages_of(self.trace.outputs[self.trace.forward_outputs :])
        size = sum(self.trace.storages.size[s] for s in gradients)
        total = self.residents({n.name: 0 for n in sources})[0]
        return max(0, total - held) / size if size else 0.0

    def _cuts(self, key: str) -> Iterator[Cut]:
        """Ways to cut, by estimate the fastest first; then those that are the least short."""
        if key in _NAMED and len(_NAMED[key].order) == len(self.budgets):
            yield _NAMED[key]
        limit = self.options.time_limit / len(FEWER) / 2
        found = []
        for pieces in FEWER:
            solution = partition(self._chain(pieces).problem, None, "1f1b", 1, limit)
            if solution.stage_plans:
                order = tuple(s.device for s in solution.stage_plans)
                found.append((solution.step_seconds, Cut(pieces, solution.cuts, order)))
        yield from (cut for _, cut in sorted(found, key=lambda f: f[0]))
        yield from self._least_short()

    def _least_short(self) -> list[Cut]:
        """All cuts between a few pieces, the one first at which a device lacks least."""
        problem = self._chain(_PIECES).problem
        count = len(self.budgets)
        scored = []
        for cuts in islice(combinations(range(1, len(problem.items)), count - 1), _MOST_CUTS):
            ends = pairwise((0, *cuts, len(problem.items)))
            short = [
                max(0, problem.resident(start, stop) + _least(problem.items[start:stop]) - d.memory)
                for (start, stop), d in zip(ends, problem.devices, strict=True)
            ]
            scored.append((max(short), sum(short), cuts))
        return [Cut(_PIECES, cuts, tuple(range(count))) for _, _, cuts in sorted(scored)]

    def _plan(self, cut: Cut, stages: Mapping[fx.Node, int]) -> Sharded | _Failure | None:
        """A plan with this cut, or what each device lacks; None where nothing may cross."""
        count = len(self.budgets)
        try:
            trace = shard_trace(self.trace, stages, [self.trace.device()] * count)
        except TraceError:
            return None
        costs = with_replays(self.options.costs(list(trace.operators)))
        lowered = lower(trace, costs, 0, self.options.reuse)
        homes = {n.name: stage_of(n) for n in trace.joint.graph.find_nodes(op="placeholder")}
        held, found = [*self.residents(homes), *[0] * count], sides(trace)
        parts, solutions, errors = [], [], []
        for stage, device in enumerate(cut.order):
            parts.append(lower_stage(lowered, trace, found, stage, held[stage]))
            try:
                budget = self.budgets[device]
                solutions.append(find_schedule(parts[-1].lowered, budget, self.each))
            except InfeasibleBudget as error:
                told = (error.budget_bytes, error.minimum_bytes, error.blockers)
                errors.append(InfeasibleBudget(*told, device=self.options.devices[device][0]))
        if errors:
            return _Failure(cut, tuple(errors))
        return Sharded(cut, trace, costs, lowered, tuple(parts), tuple(solutions))


@dataclass(frozen=True)
class _Failure:
    """What each of some devices lacks with a cut."""

    cut: Cut
    errors: tuple[InfeasibleBudget, ...]

    @property
    def short(self) -> int:
        """Bytes, on all of them."""
        return sum(map(_shortfall, self.errors))


def _least(items: Sequence[Item]) -> int:
    """Bytes beside residents that a stage takes if each item keeps as little as it can."""
    lean = [min(item.options, key=lambda option: option.kept) for item in items]
    return sum(option.kept for option in lean) + max(option.peak for option in lean)


def _shortfall(error: InfeasibleBudget) -> int:
    return (error.minimum_bytes or NO_LIMIT) - error.budget_bytes
