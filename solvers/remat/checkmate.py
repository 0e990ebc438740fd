"""Checkmate's linear relaxation and its two-phase rounding, the heuristic ``checkmate-lp``."""

from __future__ import annotations

import time as clock
from datetime import timedelta

import numpy as np
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from .arrays import Arrays
from .evaluate import evaluate
from .problem import RematProblem

# Shares of the budget that the relaxation leaves free; the source's first.
MARGINS = (0.1, 0.0, 0.2, 0.35)
THRESHOLDS = (0.5, 0.3, 0.7, 0.1, 0.9)  # above which a fraction is kept; the source's first

# Of the program's matrix, for each second: HiGHS solves G1 (190,000) in 2 s and not CM2
# (1,900,000) in 60, and looks at no clock in its presolve, which takes up to a tenth of this.
MOST_ENTRIES = 15_000


def checkmate_lp(
    problem: RematProblem, a: Arrays, budget: int | None, deadline: float
) -> np.ndarray:
    """Jain et al., "Checkmate" (MLSys 2020), section 5: relax, round what is kept, repair.

    The integer program of their section 4 is solved in fractions at 0.9 of the budget; what is
    kept between stages is rounded at 1/2; then the fewest runs are made that this allows. What
    differs: further shares and thresholds are tried while time is left, and the fastest
    schedule that fits is taken. Freed outputs are bounded row by row and not by their sum,
    without which fractions free half of what is still read. The outputs of an operator are
    kept together, one that runs once throughout, and copies die at their last read.

    The program grows with the square of the graph. Where it is too large for the deadline,
    the answer is the given order, at once.
    """
    best = order = np.arange(problem.count)
    if budget is None or problem.count == 0:
        return order

    def rank(sequence: np.ndarray) -> tuple[int, int]:
        total, peak, _ = evaluate(a, sequence, budget)
        return max(0, peak - budget), total

    for margin in MARGINS:
        began = clock.monotonic()
        left = deadline - began
        if problem.count**2 > MOST_ENTRIES * left:  # as many as there are variables or more
            break
        program = _program(problem, budget, margin, int(MOST_ENTRIES * left))
        kept = program and _solve(problem, *program, 0.9 * deadline + 0.1 * clock.monotonic())
        if kept is None:
            break
        best = min([best, *(_repaired(problem, a, kept > x) for x in THRESHOLDS)], key=rank)
        if deadline - clock.monotonic() < 2 * (clock.monotonic() - began):
            break
    return best


def _repaired(problem: RematProblem, a: Arrays, kept: np.ndarray) -> np.ndarray:
    """The least runs with which ``kept[t]``, and each operator of stage ``t``, is there."""
    count = problem.count
    single = a.op["single"] == 1
    sequence: list[int] = []
    stages = np.arange(count)
    kept = kept | (single[None, :] & (stages[:, None] > stages[None, :]))
    for t in range(count):
        run = np.zeros(count, np.bool_)
        run[t] = True
        if t + 1 < count:
            run |= kept[t + 1] & ~kept[t] & (stages <= t)
        for v in range(t, -1, -1):
            if run[v]:
                for u in problem.inputs[v]:
                    run[u] |= not kept[t, u]
        sequence += [int(v) for v in np.flatnonzero(run)]
    return np.array(sequence, np.int64)


class _Rows:
    """Variables and rows of a linear program, gathered as flat lists for MathOpt's proto."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.cost: list[float] = []
        self.least: list[float] = []
        self.row: list[int] = []
        self.column: list[int] = []
        self.entry: list[float] = []

    def variable(self, low: float, high: float, cost: float = 0.0) -> int:
        self.low.append(low)
        self.high.append(high)
        self.cost.append(cost)
        return len(self.low) - 1

    def at_least(self, least: float, terms: dict[int, float]) -> None:
        """The sum of ``factor * variable`` is at least ``least``."""
        self.row += [len(self.least)] * len(terms)
        for column in sorted(terms):
            self.column.append(column)
            self.entry.append(terms[column])
        self.least.append(least)

    def model(self) -> mathopt.Model:
        proto = model_pb2.ModelProto()
        columns, rows = len(self.low), len(self.least)
        proto.variables.ids.extend(range(columns))
        proto.variables.lower_bounds.extend(self.low)
        proto.variables.upper_bounds.extend(self.high)
        proto.variables.integers.extend([False] * columns)
        spent = [(i, cost) for i, cost in enumerate(self.cost) if cost]
        proto.objective.linear_coefficients.ids.extend(i for i, _ in spent)
        proto.objective.linear_coefficients.values.extend(cost for _, cost in spent)
        proto.linear_constraints.ids.extend(range(rows))
        proto.linear_constraints.lower_bounds.extend(self.least)
        proto.linear_constraints.upper_bounds.extend([float("inf")] * rows)
        matrix = proto.linear_constraint_matrix
        matrix.row_ids.extend(self.row)
        matrix.column_ids.extend(self.column)
        matrix.coefficients.extend(self.entry)
        return mathopt.Model.from_model_proto(proto)


def _program(
    problem: RematProblem, budget: int, margin: float, most: int
) -> tuple[_Rows, list[list[int]]] | None:
    """The relaxation, and the variable of each ``S[t, i]`` (``i < t``); None if too large."""
    rows, count = _Rows(), problem.count
    room = (1 - margin) * (budget - problem.resident_bytes)
    scale = 1.0 / max(1.0, room)
    outputs = [sum(problem.size[s] for s in w) * scale for w in problem.writes]
    mean = max(1.0, problem.base_time / count)
    readers: list[list[int]] = [[] for _ in range(count)]
    for v in range(count):
        for u in problem.inputs[v]:
            readers[u].append(v)
    forever = [any(s in problem.keep for s in w) for w in problem.writes]
    fixed = [v in problem.once or v == problem.turn for v in range(count)]
    run, kept = list[list[int]](), list[list[int]]()
    for t in range(count):
        run.append(
            [
                rows.variable(
                    float(i == t), 0.0 if fixed[i] and i < t else 1.0, problem.time[i] / mean
                )
                for i in range(t + 1)
            ]
        )
        kept.append([rows.variable(0, 1) for _ in range(t)])
    for t in range(count):
        if len(rows.entry) > most:
            return None
        for i in range(t):  # kept because it was kept before, or has just run
            before = {run[t - 1][i]: 1.0, kept[t][i]: -1.0}
            if i < t - 1:
                before[kept[t - 1][i]] = 1.0
            rows.at_least(0.0, before)
        used = dict[int, float]()  # bytes so far in this stage, as a sum
        for i in range(t):
            if outputs[i]:
                used[kept[t][i]] = outputs[i]
        level = rows.variable(0, 1)  # bytes at each operator, at most 1 in units of the budget
        rows.at_least(0.0, {level: 1.0} | {i: -x for i, x in used.items()})
        freed = dict[int, float]()
        for k in range(t + 1):
            for i in problem.inputs[k]:
                rows.at_least(0.0, {run[t][k]: -1.0, run[t][i]: 1.0, kept[t][i]: 1.0})
            workspace = problem.workspace[k] * scale
            here = rows.variable(0, 1)
            rows.at_least(
                0.0,
                {here: 1.0, level: -1.0, run[t][k]: -outputs[k]} | freed,
            )
            if workspace:
                rows.at_least(-1.0, {here: -1.0, run[t][k]: -workspace})
            level, freed = here, {}
            for i in (*problem.inputs[k], k):
                if not outputs[i] or (forever[i] and t == count - 1):
                    continue
                later = [run[t][j] for j in readers[i] if k < j <= t]
                hazards = [*later, kept[t + 1][i]] if t + 1 < count else later
                # Freed after k only if that ran, and nothing later in this stage, nor the next
                # stage, needs the output.
                free = rows.variable(0, 1)
                rows.at_least(0.0, {free: -1.0, run[t][k]: 1.0})
                for hazard in hazards:
                    rows.at_least(-1.0, {free: -1.0, hazard: -1.0})
                freed[free] = outputs[i]
    return rows, kept


def _solve(
    problem: RematProblem, rows: _Rows, kept: list[list[int]], deadline: float
) -> np.ndarray | None:
    """``S`` as float[n, n]; None where it is not found in time."""
    model = rows.model()
    left = deadline - clock.monotonic()
    if left < 0.01:
        return None
    limit = mathopt.SolveParameters(time_limit=timedelta(seconds=left))
    # Measured on G1 and CM1 at 80 %: HiGHS 1.7 and 0.8 s, GLOP 6.5 and 5.2, PDLP 29 and 5.6.
    result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=limit)
    if result.termination.reason != mathopt.TerminationReason.OPTIMAL:
        return None
    values = result.variable_values(list(model.variables()))
    found = np.zeros((problem.count, problem.count))
    for t, row in enumerate(kept):
        found[t, :t] = [values[i] for i in row]
    return found
