"""The dynamic program of `rotor` and `blocks`: an optimal plan for a chain at every memory.

After Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for
heterogeneous chains" (INRIA RR-9302, 2019; the rotor library), with several ways to save a stage
as in Rockmate (Zhao et al., ICML 2023). ``C[s, t, m]`` is the least time of all runs of stages
``s .. t`` in ``m`` bytes, the input of ``s`` being there and not counted. Stage ``s`` is either

* run and saved in one of its ways ``k``, whereupon the rest is processed and ``s`` goes backward:
  ``f[s] + C[s + 1, t, m - saved[s, k]] + b[s, k]``;
* or run with its input kept, as are ``s + 1 .. s' - 1`` with nothing kept, whereupon the stages
  from ``s'`` on are processed and those before begin anew:
  ``f[s] + ... + f[s' - 1] + C[s', t, m - out[s' - 1]] + C[s, s' - 1, m - made[s' .. t]]``.

The source counts no bytes that a backward stage leaves behind (gradients of weights); here
``made`` takes them off the memory of the stages that go backward after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .jit import entry

FOREVER = 1 << 60


@dataclass(frozen=True)
class ChainCosts:
    """Stages as numbers: L stages, K ways to save each, bytes and times.

    Attributes
    ----------
    forward : int64[L]
        Time of a forward run.
    out, passing : int64[L]
        Bytes of the result; most bytes of a run that keeps nothing else, without the input.
    made, gradient : int64[L]
        Bytes that the backward run leaves for good, and that it takes over from the stage
        after it.
    saved, while_saving, while_backward, backward : int64[L, K]
        For each way to save: bytes that stay, result included; most bytes of the forward run
        and of the backward run (without the input; the latter with the gradient taken over);
        time of the backward run. A way of `FOREVER` bytes does not exist.
    """

    forward: np.ndarray
    out: np.ndarray
    passing: np.ndarray
    made: np.ndarray
    gradient: np.ndarray
    saved: np.ndarray
    while_saving: np.ndarray
    while_backward: np.ndarray
    backward: np.ndarray

    def rounded(self, unit: int) -> ChainCosts:
        """Bytes in whole units, rounded up."""
        return ChainCosts(
            self.forward, -(-self.out // unit), -(-self.passing // unit), -(-self.made // unit),
            -(-self.gradient // unit), -(-self.saved // unit), -(-self.while_saving // unit),
            -(-self.while_backward // unit), self.backward,
        )  # fmt: skip


@entry
def chain_table(
    forward: np.ndarray,
    out: np.ndarray,
    passing: np.ndarray,
    made: np.ndarray,
    gradient: np.ndarray,
    saved: np.ndarray,
    while_saving: np.ndarray,
    while_backward: np.ndarray,
    backward: np.ndarray,
    slots: int,
) -> np.ndarray:
    """``C`` as int64[L (L + 1) / 2, slots]: row ``t (t + 1) / 2 + s``, `FOREVER` where none fits.

    The arguments are the fields of `ChainCosts` in units of a slot.
    """
    count = len(forward)
    table = np.full((count * (count + 1) // 2, slots), 1 << 60, np.int64)
    for t in range(count):
        for s in range(t, -1, -1):
            row = table[t * (t + 1) // 2 + s]
            after = 0
            for j in range(s + 1, t + 1):
                after += made[j]
            for k in range(saved.shape[1]):
                need = max(gradient[t] + while_saving[s, k], while_backward[s, k] + after)
                time = forward[s] + backward[s, k]
                if s == t:
                    for m in range(need, slots):
                        row[m] = min(row[m], time)
                else:
                    rest = table[t * (t + 1) // 2 + s + 1]
                    less = saved[s, k]
                    for m in range(max(need, less), slots):
                        row[m] = min(row[m], time + rest[m - less])
            time, need = 0, 0
            for split in range(s + 1, t + 1):
                j = split - 1
                time += forward[j]
                need = max(need, gradient[t] + passing[j] + (out[j - 1] if j > s else 0))
                right, left = table[t * (t + 1) // 2 + split], table[j * (j + 1) // 2 + s]
                less, later = out[j], after
                for m in range(max(need, max(less, later)), slots):
                    row[m] = min(row[m], time + right[m - less] + left[m - later])
                after -= made[split]
    return table


def warm_chain() -> None:
    """Compile the table's kernel, or load it."""
    row, table = np.ones(1, np.int64), np.ones((1, 1), np.int64)
    ChainPlan(ChainCosts(row, row, row, row, row, table, table, table, table), 1, 1)


@dataclass(frozen=True)
class Step:
    """One run of a stage: ``way`` -1 keeps its result only; ``backward`` ends its life."""

    stage: int
    way: int
    backward: bool = False


class ChainPlan:
    """The table, and the plans that stand in it.

    Parameters
    ----------
    costs : ChainCosts
        In bytes.
    memory : int
        Bytes of the largest plan of interest.
    slots : int
        Steps into which ``memory`` is divided.
    """

    def __init__(self, costs: ChainCosts, memory: int, slots: int) -> None:
        self.unit = max(1, -(-memory // slots))  # bytes of a slot
        self.costs = costs.rounded(self.unit)
        c = self.costs
        self.table = chain_table(
            c.forward, c.out, c.passing, c.made, c.gradient,
            c.saved, c.while_saving, c.while_backward, c.backward, slots + 1,
        )  # fmt: skip

    def memories(self) -> list[int]:
        """Slots at which a faster plan becomes possible, ascending."""
        whole = self.table[-len(self.costs.forward)]
        return [int(m) for m in np.flatnonzero(np.diff(whole, prepend=FOREVER) < 0)]

    def steps(self, memory: int) -> list[Step]:
        """The runs of an optimal plan within ``memory`` slots, in order."""
        c, steps = self.costs, list[Step]()
        # Stages still to process, or a single step; the last is next.
        todo: list[tuple[int, int, int] | Step] = [(0, len(c.forward) - 1, memory)]
        while todo:
            task = todo.pop()
            if isinstance(task, Step):
                steps.append(task)
                continue
            s, t, m = task
            way, split = self._choice(s, t, m)
            if split > s:
                steps += [Step(j, -1) for j in range(s, split)]
                todo.append((s, split - 1, m - int(c.made[split : t + 1].sum())))
                todo.append((split, t, m - int(c.out[split - 1])))
                continue
            steps.append(Step(s, way))
            todo.append(Step(s, way, backward=True))
            if s < t:
                todo.append((s + 1, t, m - int(c.saved[s, way])))
        return steps

    def _cell(self, s: int, t: int, m: int) -> int:
        return int(self.table[t * (t + 1) // 2 + s, m]) if m >= 0 else FOREVER

    def _choice(self, s: int, t: int, m: int) -> tuple[int, int]:
        """``(way, s)`` to save stage ``s``, ``(-1, split)`` to begin anew from it later."""
        c, goal = self.costs, self._cell(s, t, m)
        after = int(c.made[s + 1 : t + 1].sum())
        for k in range(c.saved.shape[1]):
            need = max(c.gradient[t] + c.while_saving[s, k], c.while_backward[s, k] + after)
            rest = 0 if s == t else self._cell(s + 1, t, m - int(c.saved[s, k]))
            if need <= m and c.forward[s] + c.backward[s, k] + rest == goal:
                return k, s
        time = need = 0
        for split in range(s + 1, t + 1):
            j = split - 1
            time += int(c.forward[j])
            need = max(need, int(c.gradient[t] + c.passing[j] + (c.out[j - 1] if j > s else 0)))
            right = self._cell(split, t, m - int(c.out[j]))
            left = self._cell(s, j, m - int(c.made[split : t + 1].sum()))
            if need <= m and time + right + left == goal:
                return -1, split
        raise AssertionError("a cell of the chain's table has no origin")
