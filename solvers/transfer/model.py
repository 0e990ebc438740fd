"""The variables and rules of `exact`: one action a slot, one state between slots."""

from __future__ import annotations

from itertools import pairwise

from ortools.sat.python import cp_model

from .problem import Action, Kind, TransferProblem

Literal = cp_model.IntVar
Pair = tuple[int, int]  # storage, tier
Row = dict[Pair, Literal]
MOVES: tuple[Kind, ...] = ("out", "out_done", "in", "in_done")


class Model:
    """The model of schedules of at most ``slots`` actions.

    Attributes
    ----------
    model : CpModel
    makespan : IntVar
    """

    def __init__(
        self, problem: TransferProblem, budget: int, slots: int, below: int | None
    ) -> None:
        self.problem, self.slots = problem, slots
        self.model = model = cp_model.CpModel()
        remat = problem.remat
        self.stored = [s for s in range(len(remat.size)) if remat.writer[s] >= 0]
        self.pairs: list[Pair] = [
            (s, t) for s in sorted(problem.movable) for t in range(len(problem.tiers))
        ]
        self.run = [[self._literal() for _ in range(remat.count)] for _ in range(slots)]
        self.move: dict[Kind, list[Row]] = {
            kind: [self._row() for _ in range(slots)] for kind in MOVES
        }
        # Between slots. Is the latest copy held; is it leaving; is what leaves another copy than
        # the latest; is it on the tier, and will be wanted; is it coming?
        self.held = [{s: self._literal() for s in self.stored} for _ in range(slots + 1)]
        names = ("leaving", "apart", "there", "coming")
        self.state = {name: [self._row() for _ in range(slots + 1)] for name in names}
        horizon = below if below is not None else self._horizon()
        self.now = [model.new_int_var(0, horizon, "") for _ in range(slots + 1)]
        self.makespan = self.now[slots]
        self._one_action_a_slot()
        self._runs()
        self._copies()
        self._transfers()
        self._memory(budget)
        self._times(horizon)
        if below is not None:
            model.add(self.makespan < below)
        model.minimize(self.makespan)

    def _literal(self) -> Literal:
        return self.model.new_bool_var("")

    def _row(self) -> Row:
        return {pair: self._literal() for pair in self.pairs}

    def _horizon(self) -> int:
        """Some schedule of so many actions ends by then, if any does."""
        remat, tiers = self.problem.remat, self.problem.tiers
        longest = max(remat.time, default=0)
        for s, t in self.pairs:
            size = remat.size[s]
            tier = tiers[t]
            longest = max(longest, tier.write_time(size) + tier.write_work(size))
            longest = max(longest, tier.read_time(size) + tier.read_work(size))
        return longest * self.slots

    def _one_action_a_slot(self) -> None:
        rows = []
        for t in range(self.slots):
            moves = [literal for kind in MOVES for literal in self.move[kind][t].values()]
            rows.append([*self.run[t], *moves])
            self.model.add_at_most_one(rows[-1])
        for row, following in pairwise(rows):
            self.model.add(sum(row) >= sum(following))

    def _runs(self) -> None:
        """All run, some once, first runs of some in order."""
        remat, model, run = self.problem.remat, self.model, self.run
        ran = [[self._literal() for _ in range(remat.count)] for _ in range(self.slots + 1)]
        for v in range(remat.count):
            model.add(ran[0][v] == 0)
            for t in range(self.slots):
                model.add_max_equality(ran[t + 1][v], [ran[t][v], run[t][v]])
            runs = sum(run[t][v] for t in range(self.slots))
            model.add(runs == 1 if v in remat.once or v == remat.turn else runs >= 1)
        for before, after in pairwise(remat.ordered):
            for t in range(self.slots):
                model.add_implication(run[t][after], ran[t][before])

    def _copies(self) -> None:
        """What is read is held; what is held was held before or has just been made."""
        remat, model, move = self.problem.remat, self.model, self.move
        for s in self.stored:
            model.add(self.held[0][s] == 0)
            if s in remat.keep:
                model.add(self.held[self.slots][s] == 1)
        for t in range(self.slots):
            for v in range(remat.count):
                for s in set(remat.reads[v]):
                    if remat.writer[s] >= 0:
                        model.add_implication(self.run[t][v], self.held[t][s])
            for s in self.stored:
                made = [self.held[t][s], *self._made(t, s)]
                model.add_bool_or([*made, ~self.held[t + 1][s]])
            for pair in self.pairs:
                model.add_implication(move["out"][t][pair], self.held[t][pair[0]])

    def _made(self, t: int, s: int) -> list[Literal]:
        """Actions of slot ``t`` from which on another copy of ``s`` is the latest."""
        loads = [self.move["in_done"][t][pair] for pair in self.pairs if pair[0] == s]
        return [self.run[t][self.problem.remat.writer[s]], *loads]

    def _transfers(self) -> None:
        model, move, state = self.model, self.move, self.state
        leaving, apart, there, coming = (
            state[name] for name in ("leaving", "apart", "there", "coming")
        )
        for pair in self.pairs:
            s = pair[0]
            for row in (leaving, apart, there, coming):
                model.add(row[0][pair] == 0)
            model.add(leaving[self.slots][pair] == 0)
            model.add(coming[self.slots][pair] == 0)
            model.add_at_most_one(move["out"][t][pair] for t in range(self.slots))
            for t in range(self.slots):
                out, gone = move["out"][t][pair], move["out_done"][t][pair]
                ask, came = move["in"][t][pair], move["in_done"][t][pair]
                model.add(leaving[t + 1][pair] == leaving[t][pair] + out - gone)
                model.add(coming[t + 1][pair] == coming[t][pair] + ask - came)
                model.add_bool_or([there[t][pair], gone, ~there[t + 1][pair]])
                model.add_implication(ask, there[t][pair])
                model.add_implication(coming[t][pair], there[t][pair])
                # What leaves stays held, as the latest copy or apart from it.
                model.add_bool_or([~leaving[t][pair], apart[t][pair], self.held[t][s]])
                for made in (apart[t][pair], *self._made(t, s)):
                    model.add_bool_or([~leaving[t + 1][pair], ~made, apart[t + 1][pair]])
        for i, tier in enumerate(self.problem.tiers):
            if tier.capacity is not None:
                for t in range(self.slots + 1):
                    used = sum(
                        self.problem.remat.size[pair[0]] * (leaving[t][pair] + there[t][pair])
                        for pair in self.pairs
                        if pair[1] == i
                    )
                    model.add(used <= tier.capacity)

    def _memory(self, budget: int) -> None:
        remat, size = self.problem.remat, self.problem.remat.size
        saved = self._overwritten()
        for t in range(self.slots):
            used = sum(size[s] * self.held[t][s] for s in self.stored)
            for pair in self.pairs:
                moving = self.state["coming"][t][pair] + self.state["apart"][t][pair]
                used += size[pair[0]] * (moving + self.move["in"][t][pair])
            for v in range(remat.count):
                outputs = sum(size[s] for s in remat.writes[v])
                used += (remat.workspace[v] + outputs) * self.run[t][v]
            self.model.add(used - sum(saved[t]) <= budget - remat.resident_bytes)

    def _overwritten(self) -> list[list[cp_model.LinearExpr | int]]:
        """Bytes saved in each slot by an operator that overwrites an input that dies there."""
        remat, model = self.problem.remat, self.model
        savings: list[list[cp_model.LinearExpr | int]] = [[] for _ in range(self.slots)]
        crossing: dict[int, list[Literal]] = {}
        for v in range(remat.count):
            gain = remat.size[remat.writes[v][0]] if remat.writes[v] else 0
            inputs = [
                s
                for s in dict.fromkeys(remat.reuse[v])
                if remat.writer[s] >= 0 and s in remat.reads[v] and remat.size[s] == gain
            ]
            if not inputs or gain == 0:
                continue
            for s in inputs:
                if s not in crossing:
                    crossing[s] = self._crosses(s)
            for t in range(self.slots):
                chosen = []
                for s in inputs:
                    dies = self._literal()
                    model.add_implication(dies, self.run[t][v])
                    model.add_implication(dies, ~self.held[t + 1][s])
                    model.add_implication(dies, ~crossing[s][t])
                    # Another copy of it that leaves may be the one that dies here.
                    for pair in self.pairs:
                        if pair[0] == s:
                            leaves = self.state["leaving"][t][pair]
                            model.add_bool_or([~dies, ~leaves, self.state["apart"][t][pair]])
                    chosen.append(dies)
                model.add_at_most_one(chosen)
                savings[t].append(gain * sum(chosen))
        return savings

    def _crosses(self, s: int) -> list[Literal]:
        """Was the copy held before each slot made before the turn, which has run since?"""
        model, turn = self.model, self.problem.remat.turn
        row = [self._literal() for _ in range(self.slots + 1)]
        if turn is None:
            return row
        for t in range(self.slots):
            for cause in (self.run[t][turn], row[t]):
                model.add_bool_or([~cause, ~self.held[t + 1][s], *self._made(t, s), row[t + 1]])
        for pair in self.pairs:
            if pair[0] != s:
                continue
            early = [self._literal() for _ in range(self.slots + 1)]  # asked for before the turn
            for t in range(self.slots):
                for cause in (self.run[t][turn], early[t]):
                    coming = self.state["coming"][t + 1][pair]
                    model.add_bool_or([~cause, ~coming, early[t + 1]])
                model.add_bool_or([~early[t], ~self.move["in_done"][t][pair], row[t + 1]])
        return row

    def _times(self, horizon: int) -> None:
        """When the processor is at each slot, each link free, each transfer through."""
        remat, model, now = self.problem.remat, self.model, self.now
        model.add(now[0] == 0)
        # Implied, and what the linear relaxation would not see.
        spent = [self._spent(t) for t in range(self.slots)]
        model.add(self.makespan >= sum(spent))
        for t in range(self.slots):
            model.add(now[t + 1] >= now[t] + spent[t])
        for i, tier in enumerate(self.problem.tiers):
            directions: tuple[tuple[Kind, Kind], ...] = (("out", "out_done"), ("in", "in_done"))
            for ask, done in directions:
                pairs = [pair for pair in self.pairs if pair[1] == i]
                took = tier.write_time if ask == "out" else tier.read_time
                free = [model.new_int_var(0, horizon, "") for _ in range(self.slots + 1)]
                ends = {p: [model.new_int_var(0, horizon, "") for _ in free] for p in pairs}
                for t in range(self.slots):
                    model.add(free[t + 1] >= free[t])
                    for pair in pairs:
                        asked, waited = self.move[ask][t][pair], self.move[done][t][pair]
                        duration = took(remat.size[pair[0]])
                        model.add(free[t + 1] >= free[t] + duration).only_enforce_if(asked)
                        model.add(free[t + 1] >= now[t] + duration).only_enforce_if(asked)
                        end = ends[pair]
                        model.add(end[t + 1] >= free[t + 1]).only_enforce_if(asked)
                        model.add(end[t + 1] >= end[t]).only_enforce_if(~asked)
                        model.add(now[t + 1] >= end[t]).only_enforce_if(waited)

    def _spent(self, t: int) -> cp_model.LinearExpr | int:
        """Time of the processor in a slot, but for waiting."""
        remat, tiers = self.problem.remat, self.problem.tiers
        spent = [remat.time[v] * self.run[t][v] for v in range(remat.count)]
        for pair in self.pairs:
            tier, size = tiers[pair[1]], remat.size[pair[0]]
            spent.append(tier.write_work(size) * self.move["out"][t][pair])
            spent.append(tier.read_work(size) * self.move["in"][t][pair])
        return sum(spent)

    def read(self, solver: cp_model.CpSolver) -> tuple[Action, ...]:
        """The actions of a solution."""
        actions = []
        for t in range(self.slots):
            for v, literal in enumerate(self.run[t]):
                if solver.boolean_value(literal):
                    actions.append(Action("run", v))
            for kind in MOVES:
                for (s, tier), literal in self.move[kind][t].items():
                    if solver.boolean_value(literal):
                        actions.append(Action(kind, s, tier))
        return tuple(actions)
