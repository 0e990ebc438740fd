"""The boundary problem as a minimum cut.

Let the operator ``pivot`` run for the first time. All its ancestors have run, none of its
descendants has. What the descendants read (and what is kept) is either alive now, or is
computed again later from what is alive. With a price per saved byte that is a closure
problem, so a minimum cut decides it exactly:

* a node for each operator (source side: runs again) and each storage (source side: needed);
* source -> storage: the descendants read it;
* storage -> writer, capacity the price of saving it: cut if needed but not recomputed;
* operator -> each storage that it reads, without limit;
* operator -> sink, capacity its time.

Operators that neither precede nor follow the pivot may run for the first time after it, so
they cost nothing there. Flows by OR-Tools' push-relabel solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ortools.graph.python import max_flow

from .problem import RematProblem

LIMIT = 1 << 58  # keeps sums of capacities well inside 64 bits


@dataclass(frozen=True)
class Cut:
    """An optimal choice at given prices.

    Attributes
    ----------
    value : int
        Scaled value of the minimum cut.
    redo : bool[n]
        Operators that run (again) after the pivot.
    save : bool[m]
        Storages alive across the pivot.
    """

    value: int
    redo: np.ndarray
    save: np.ndarray


class Boundary:
    """What may be saved or recomputed around ``pivot``.

    Attributes
    ----------
    after : bool[n]
        Descendants of the pivot.
    before : bool[n]
        Ancestors of the pivot, itself included.
    demand : int array
        Storages that are needed after the pivot and come from before it or from aside.
    cost : int64[n]
        Time that running an operator after the pivot adds at the least.
    fixed : bool[n]
        Operators that cannot run again.
    paid : bool[m]
        Storages that are alive at the pivot whatever is decided.
    """

    def __init__(self, problem: RematProblem, pivot: int) -> None:
        self.problem, self.pivot = problem, pivot
        count, writer = problem.count, problem.writer
        self.before = np.zeros(count, np.bool_)
        stack = [pivot]
        self.before[pivot] = True
        while stack:
            for u in problem.inputs[stack.pop()]:
                if not self.before[u]:
                    self.before[u] = True
                    stack.append(u)
        readers: list[list[int]] = [[] for _ in problem.size]
        for v, row in enumerate(problem.reads):
            for s in set(row):
                readers[s].append(v)
        self.readers = readers
        self.after = np.zeros(count, np.bool_)
        stack = [pivot]
        while stack:
            for s in problem.writes[stack.pop()]:
                for v in readers[s]:
                    if not self.after[v]:
                        self.after[v] = True
                        stack.append(v)
        # Descendants and the pivot itself make their outputs in any case.
        given = self.after.copy()
        given[pivot] = True
        self.nodes = [v for v in range(count) if not given[v]]
        wanted = {s for v in np.flatnonzero(self.after) for s in problem.reads[v]} | problem.keep
        self.demand = np.array(
            sorted(s for s in wanted if writer[s] >= 0 and not given[writer[s]]), np.int64
        )
        self.cost = np.where(self.before, np.array(problem.time, np.int64), 0)
        self.fixed = np.array([v in problem.once and bool(self.before[v]) for v in range(count)])
        # A storage that the pivot reads is alive then whatever is decided.
        self.paid = np.zeros(len(problem.size), np.bool_)
        self.paid[[s for s in problem.reads[pivot] if writer[s] >= 0]] = True
        self._build()

    def capacity(self, budget: int) -> int:
        """Bytes that the budget leaves for saved storages while the pivot runs."""
        problem, pivot = self.problem, self.pivot
        taken = sum(problem.size[s] for s in np.flatnonzero(self.paid))
        taken += sum(problem.size[s] for s in problem.writes[pivot]) + problem.workspace[pivot]
        if problem.reuse[pivot] and problem.writes[pivot]:
            taken -= problem.size[problem.writes[pivot][0]]
        return budget - problem.resident_bytes - taken

    def _build(self) -> None:
        problem, count = self.problem, self.problem.count
        storages = [s for v in self.nodes for s in problem.writes[v]]
        source, sink = count + len(problem.size), count + len(problem.size) + 1
        tail, head, kind, index = [], [], [], []

        def arc(u: int, v: int, what: int, item: int) -> None:
            tail.append(u)
            head.append(v)
            kind.append(what)
            index.append(item)

        for s in self.demand:
            arc(source, count + s, 1, s)
        for s in storages:
            w = problem.writer[s]
            arc(count + s, sink if self.fixed[w] else w, 0, s)
        inner = np.zeros(len(problem.size), np.bool_)
        inner[storages] = True
        for v in self.nodes:
            if self.fixed[v]:
                continue
            arc(v, sink, 2, v)
            for s in set(problem.reads[v]):
                if inner[s]:
                    arc(v, count + s, 1, s)
        self.source, self.sink = source, sink
        self.tail, self.head = np.array(tail, np.int32), np.array(head, np.int32)
        self.kind, self.index = np.array(kind, np.int64), np.array(index, np.int64)

    def cut(self, price: np.ndarray, cost: np.ndarray, largest: bool = False) -> Cut:
        """A minimum cut.

        Parameters
        ----------
        price : int64[m]
            Price of saving each storage (all of it, not per byte).
        cost : int64[n]
            Price of running each operator after the pivot.
        largest : bool
            Of several optimal choices the one that recomputes most, else the least.
        """
        if len(self.demand) == 0:
            return Cut(
                0, np.zeros(self.problem.count, bool), np.zeros(len(self.problem.size), bool)
            )
        price = np.where(self.paid, 0, np.minimum(price, LIMIT // 8))
        # A storage passes on at most its price, so "price + 1" is as good as no limit.
        of_storage = price[np.where(self.kind < 2, self.index, 0)]
        of_operator = cost[np.where(self.kind == 2, self.index, 0)]
        capacity = np.select(
            [self.kind == 0, self.kind == 1], [of_storage, of_storage + 1], of_operator
        ).astype(np.int64)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self.tail, self.head, capacity)
        status = flow.solve(self.source, self.sink)
        if status != flow.OPTIMAL:
            raise OverflowError("capacities of the boundary cut leave 64 bits")
        side = np.zeros(self.sink + 1, np.bool_)
        if largest:
            side[:] = True
            side[flow.get_sink_side_min_cut()] = False
        else:
            side[flow.get_source_side_min_cut()] = True
        redo = np.zeros(self.problem.count, np.bool_)
        redo[self.nodes] = side[self.nodes]
        redo[self.fixed] = False
        return Cut(flow.optimal_flow(), redo, self.saves(redo))

    def saves(self, redo: np.ndarray) -> np.ndarray:
        """What must be saved if exactly ``redo`` runs after the pivot."""
        problem = self.problem
        save = np.zeros(len(problem.size), np.bool_)
        save[self.demand] = True
        for v in np.flatnonzero(redo):
            for s in problem.reads[v]:
                save[s] = True
        for s in map(int, np.flatnonzero(save)):
            w = problem.writer[s]
            if w < 0 or redo[w] or self.after[w] or w == self.pivot:
                save[s] = False
        return save

    def bytes(self, save: np.ndarray) -> int:
        """Bytes of the saved storages that are not alive at the pivot anyway."""
        return sum(self.problem.size[s] for s in np.flatnonzero(save & ~self.paid))
