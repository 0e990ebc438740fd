"""Retention intervals in the given order: the model behind ``cpsat``.

After Bartan et al., "MOCCASIN: Efficient tensor rematerialization for neural networks" (ICML
2023). Time is cut into stages; operator ``v`` first runs at the end of stage ``v``, and a rerun
stands in a later stage ``t`` at the place ``t * n + v``, so that each stage goes by operators'
numbers. Each run makes copies that are alive over an interval, whose bytes are under one
cumulative constraint, and lies within an interval of each of its inputs.

What differs: intervals end anywhere (the published code takes their lengths from a grid); which
copy a run reads is a Boolean in place of a reservoir constraint for each edge; a copy dies
before the next is made; workspace, kept storages, and outputs that overwrite an input count as
in `check`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from .problem import RematProblem

RUNS = 2  # of an operator at most, as in the source


@dataclass(frozen=True)
class Run:
    """One run of an operator.

    Attributes
    ----------
    there : literal
        Does it happen?
    place : linear expression
        When.
    stage : variable
        ``place`` divided by the number of operators.
    last : dict
        Storage -> place of the last read of the copy that is made here.
    """

    there: cp_model.IntVar
    place: cp_model.LinearExprT
    stage: cp_model.IntVar
    last: dict[int, cp_model.IntVar]


class Intervals:
    """All schedules of at most `RUNS` runs of each operator, each stage in ascending order.

    Attributes
    ----------
    model : CpModel
    capacity : IntVar
        Bytes that all intervals keep within, residents excluded.
    time : linear expression
        Duration of all reruns.
    """

    def __init__(self, problem: RematProblem) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self.end = problem.count * problem.count
        most = sum(problem.size) * RUNS + sum(problem.workspace)
        self.capacity = self.model.new_int_var(0, most, "")
        self._always = self.model.new_constant(1)
        wanted = problem.keep.union(*problem.reads)
        self.runs = [
            self._runs_of(v, most=1 if wanted.isdisjoint(problem.writes[v]) else RUNS)
            for v in range(problem.count)
        ]
        for v in range(problem.count):
            for run in self.runs[v]:
                self._find_inputs(v, run)
        self._keep()
        self._remember(self._overwrite())
        self.time = sum(
            problem.time[v] * run.there for v in range(problem.count) for run in self.runs[v][1:]
        )

    def _runs_of(self, v: int, most: int) -> list[Run]:
        """The first run, and up to ``most - 1`` reruns in ascending order."""
        model, problem, first = self.model, self.problem, v * self.problem.count + v

        def ends() -> dict[int, cp_model.IntVar]:
            return {s: model.new_int_var(first, self.end, "") for s in problem.writes[v]}

        runs = [Run(self._always, first, model.new_constant(v), ends())]
        if v in problem.once or v == problem.turn or v + 1 == problem.count:
            return runs
        for _ in range(1, most):
            there, stage = model.new_bool_var(""), model.new_int_var(v + 1, problem.count - 1, "")
            runs.append(Run(there, stage * problem.count + v, stage, ends()))
        for before, run in pairwise(runs):
            model.add_implication(run.there, before.there)
            for s in problem.writes[v]:
                model.add(before.last[s] < run.place).only_enforce_if(run.there)
                model.add(run.last[s] >= run.place).only_enforce_if(run.there)
        return runs

    def _find_inputs(self, v: int, run: Run) -> None:
        """``run`` lies within an interval of each input."""
        for s in dict.fromkeys(self.problem.reads[v]):
            u = self.problem.writer[s]
            if u < 0:
                continue
            found = []
            for copy in self.runs[u]:
                reads = self.model.new_bool_var("") if len(self.runs[u]) > 1 else run.there
                self.model.add_implication(reads, copy.there)
                self.model.add(copy.stage <= run.stage).only_enforce_if(reads)
                self.model.add(copy.last[s] >= run.place).only_enforce_if(reads)
                found.append(reads)
            self.model.add_bool_or(*found, ~run.there)

    def _keep(self) -> None:
        """The last copy of a kept storage lives to the end."""
        for s in self.problem.keep:
            w = self.problem.writer[s]
            if w >= 0:
                for run, later in zip(self.runs[w], [*self.runs[w][1:], None], strict=True):
                    only = [run.there] if later is None else [run.there, ~later.there]
                    self.model.add(run.last[s] == self.end).only_enforce_if(only)

    def _overwrite(self) -> dict[int, list[cp_model.IntVar]]:
        """Index of a copy's variable ``last`` -> does a run overwrite that copy?"""
        problem, model = self.problem, self.model
        found: dict[int, list[cp_model.IntVar]] = {}
        turn = -1 if problem.turn is None else problem.turn
        turned = turn * problem.count + turn
        for v in range(problem.count):
            gain = problem.size[problem.writes[v][0]] if problem.writes[v] else 0
            fits = {
                s
                for s in problem.reuse[v]
                if gain and problem.size[s] == gain and s in problem.reads[v]
            }
            for run in self.runs[v]:
                chosen = []
                for s in sorted(fits):
                    u = problem.writer[s]
                    for copy in self.runs[u] if u >= 0 else ():
                        takes = model.new_bool_var("")
                        model.add_implication(takes, run.there)
                        model.add_implication(takes, copy.there)
                        model.add(copy.last[s] == run.place).only_enforce_if(takes)
                        # Not a copy from before the turn by a run after it.
                        late = model.new_bool_var("")
                        model.add(copy.place >= turned).only_enforce_if(takes, late)
                        model.add(run.place <= turned).only_enforce_if(takes, ~late)
                        chosen.append(takes)
                        found.setdefault(copy.last[s].index, []).append(takes)
                model.add_at_most_one(chosen)
        return found

    def _remember(self, overwritten: dict[int, list[cp_model.IntVar]]) -> None:
        """All intervals within the capacity."""
        problem, model = self.problem, self.model
        intervals, demands = [], []
        for v in range(problem.count):
            for run in self.runs[v]:
                for s, last in run.last.items():
                    if problem.size[s] == 0:
                        continue
                    end: cp_model.LinearExprT = last + 1
                    if last.index in overwritten:
                        end = model.new_int_var(0, self.end + 1, "")
                        model.add(end == last + 1 - sum(overwritten[last.index]))
                    length = model.new_int_var(0, self.end + 1, "")
                    intervals.append(
                        model.new_optional_interval_var(run.place, length, end, run.there, "")
                    )
                    demands.append(problem.size[s])
                if problem.workspace[v]:
                    intervals.append(
                        model.new_optional_fixed_size_interval_var(run.place, 1, run.there, "")
                    )
                    demands.append(problem.workspace[v])
        model.add_cumulative(intervals, demands, self.capacity)

    def hint(self, sequence: Iterable[int]) -> None:
        """Begin at a schedule in the given order, as far as the model can say it."""
        self.model.clear_hints()
        count, problem = self.problem.count, self.problem
        ran = [0] * count
        stage = 0
        latest: dict[int, tuple[cp_model.IntVar, int]] = {}
        for v in sequence:
            stage = v if ran[v] == 0 else stage
            place = (stage if ran[v] == 0 else stage + 1) * count + v
            for s in problem.reads[v]:
                if s in latest:
                    latest[s] = latest[s][0], place
            if ran[v] < len(self.runs[v]):
                run = self.runs[v][ran[v]]
                if ran[v]:
                    self.model.add_hint(run.there, 1)
                    self.model.add_hint(run.stage, stage + 1)
                for s, last in run.last.items():
                    if s in latest:
                        self.model.add_hint(*latest[s])
                    latest[s] = last, place
            ran[v] += 1
        for s, (last, place) in latest.items():
            self.model.add_hint(last, self.end if s in problem.keep else place)
        for v in range(count):
            for run in self.runs[v][ran[v] :]:
                self.model.add_hint(run.there, 0)

    def schedule(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
        """The runs of a solution, in order."""
        placed = [
            (solver.value(run.place), v)
            for v in range(self.problem.count)
            for run in self.runs[v]
            if solver.boolean_value(run.there)
        ]
        return tuple(v for _, v in sorted(placed))
