"""Independent replay of a schedule with transfers: the one judge of every solver's answer.

Shares no code with any solver; plain loops over copies, written to be read. Bytes depend on the
order of the actions alone: an answer within the budget stays so however slow a link turns out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..remat import ScheduleError
from .problem import Action, TransferProblem
from .solution import Direction, Replay, Transfer

Copy = tuple[int, int]  # storage, position of the action that made the copy


def check(problem: TransferProblem, actions: Sequence[Action], budget: int | None = None) -> Replay:
    """Replay ``actions`` by the rules of `Action`, `TransferProblem` and `RematProblem`.

    A copy lives from the action that makes it (``run`` or ``in``) to the last that reads it;
    ``out`` and its ``out_done`` both read the copy that is the latest at ``out``. A storage goes
    to a tier at most once (what is there stays true), must be there before ``in``, and every
    transfer is waited for.

    Parameters
    ----------
    problem : TransferProblem
    actions : sequence of Action
    budget : int, optional
        Bytes, residents included.

    Raises
    ------
    ScheduleError
        Names the first violation, with its position; then whether a tier or the budget overflows.
    """
    actions = [Action(*action) for action in actions]
    _check_runs(problem, actions)
    last_use, done_at = _last_uses(problem, actions)
    memory = _memory(problem, actions, last_use)
    tier_peak = _tier_peaks(problem, actions)
    starts, ends, transfers = _times(problem, actions, done_at)
    peak = max(memory, default=problem.remat.resident_bytes)
    if budget is not None and peak > budget:
        position = next(p for p, held in enumerate(memory) if held > budget)
        raise ScheduleError(
            f"position {position}: {_name(problem, actions[position])} holds "
            f"{memory[position]} bytes, the budget is {budget}"
        )
    link_bytes: dict[tuple[int, Direction], int] = {}
    for transfer in transfers:
        link = transfer.tier, transfer.direction
        link_bytes[link] = link_bytes.get(link, 0) + transfer.size
    acts = zip(actions, starts, ends, strict=True)
    waits = (end - start for act, start, end in acts if act.kind.endswith("_done"))
    return Replay(
        peak=peak,
        makespan=ends[-1] if ends else 0,
        memory=tuple(memory),
        starts=tuple(starts),
        ends=tuple(ends),
        transfers=tuple(transfers),
        stall=sum(waits),
        tier_peak=tier_peak,
        link_bytes=link_bytes,
    )


def _check_runs(problem: TransferProblem, actions: Sequence[Action]) -> None:
    remat = problem.remat
    first: dict[int, int] = {}
    for position, action in enumerate(actions):
        v = action.index
        if action.kind != "run":
            continue
        if not 0 <= v < remat.count:
            raise ScheduleError(f"position {position}: no operator {v}")
        if v in first and (v in remat.once or v == remat.turn):
            raise ScheduleError(
                f"position {position}: {_name(problem, action)} ran at position {first[v]} "
                "and must run once"
            )
        first.setdefault(v, position)
    for v in range(remat.count):
        if v not in first:
            raise ScheduleError(f"{_name(problem, Action('run', v))} never runs")
    for before, after in zip(remat.ordered, remat.ordered[1:], strict=False):
        if first[before] > first[after]:
            raise ScheduleError(
                f"position {first[after]}: {_name(problem, Action('run', after))} first runs "
                f"before {_name(problem, Action('run', before))}; their order is fixed"
            )


def _last_uses(
    problem: TransferProblem, actions: Sequence[Action]
) -> tuple[dict[Copy, int], dict[int, int]]:
    """Position of the last reader of each copy; and of the ``*_done`` of each transfer."""
    remat = problem.remat
    latest: dict[int, int] = {}  # storage -> position that made the copy that is read now
    last_use: dict[Copy, int] = {}
    leaving: dict[tuple[int, int], tuple[int, int]] = {}  # (storage, tier) -> out, its copy
    coming: dict[tuple[int, int], int] = {}
    there: set[tuple[int, int]] = set()
    done_at: dict[int, int] = {}
    for position, action in enumerate(actions):
        kind, s, tier = action
        where, what = f"position {position}", (s, tier)
        if kind == "run":
            for r in remat.reads[s]:
                if remat.writer[r] < 0:
                    continue
                if r not in latest:
                    raise ScheduleError(
                        f"{where}: {_name(problem, action)} reads storage {r}, "
                        "of which there is no copy yet"
                    )
                last_use[r, latest[r]] = position
            for r in remat.writes[s]:
                latest[r] = position
                last_use[r, position] = position
            continue
        if s not in problem.movable or not 0 <= tier < len(problem.tiers):
            raise ScheduleError(f"{where}: storage {s} may not be moved to tier {tier}")
        if kind == "out":
            if what in there or what in leaving:
                raise ScheduleError(f"{where}: storage {s} went to tier {tier} before")
            if s not in latest:
                raise ScheduleError(f"{where}: no copy of storage {s} to move out yet")
            leaving[what] = position, latest[s]
        elif kind == "out_done":
            if what not in leaving:
                raise ScheduleError(f"{where}: storage {s} is not on its way to tier {tier}")
            asked, copy = leaving.pop(what)
            done_at[asked] = position
            last_use[s, copy] = max(position, last_use[s, copy])
            there.add(what)
        elif kind == "in":
            if what not in there:
                raise ScheduleError(f"{where}: storage {s} is not on tier {tier} yet")
            if what in coming:
                raise ScheduleError(f"{where}: storage {s} is on its way from tier {tier}")
            coming[what] = position
        elif kind == "in_done":
            if what not in coming:
                raise ScheduleError(f"{where}: storage {s} is not on its way from tier {tier}")
            asked = coming.pop(what)
            done_at[asked] = position
            latest[s] = asked
            last_use[s, asked] = position
        else:
            raise ScheduleError(f"{where}: no action {kind!r}")
    for s, tier in (*leaving, *coming):
        raise ScheduleError(f"the transfer of storage {s} and tier {tier} is never waited for")
    for s in remat.keep:
        if s in latest:
            last_use[s, latest[s]] = len(actions)
    return last_use, done_at


def _memory(
    problem: TransferProblem, actions: Sequence[Action], last_use: dict[Copy, int]
) -> list[int]:
    """Bytes alive during each action."""
    remat = problem.remat
    size, turn = remat.size, remat.turn
    turn_at = next((p for p, a in enumerate(actions) if a[:2] == ("run", turn)), -1)
    dying: list[list[Copy]] = [[] for _ in range(len(actions) + 1)]
    for copy, position in last_use.items():
        dying[position].append(copy)
    alive, memory = remat.resident_bytes, []
    latest: dict[int, int] = {}
    asked: dict[tuple[int, int], int] = {}
    for position, (kind, index, tier) in enumerate(actions):
        during = alive
        if kind == "run":
            outputs = sum(size[s] for s in remat.writes[index])
            alive += outputs
            during += outputs + remat.workspace[index]
            here = {s for s, made in dying[position] if made != position}
            if remat.writes[index]:
                first = size[remat.writes[index][0]]
                for s in remat.reuse[index]:
                    # A copy that crosses the turn is needed by a second backward.
                    crosses = latest.get(s, -1) < turn_at < position
                    if s in here and not crosses and size[s] == first:
                        during -= first
                        break
            for s in remat.writes[index]:
                latest[s] = position
        elif kind == "in":
            alive += size[index]
            during = alive
            asked[index, tier] = position
        memory.append(during)
        if kind == "in_done":
            latest[index] = asked[index, tier]
        alive -= sum(size[s] for s, _ in dying[position])
    return memory


def _tier_peaks(problem: TransferProblem, actions: Sequence[Action]) -> tuple[int, ...]:
    """Most bytes on each tier; raises where that is more than it holds."""
    last = {(a.index, a.tier): p for p, a in enumerate(actions) if a.kind.endswith("_done")}
    held, most = [0] * len(problem.tiers), [0] * len(problem.tiers)
    for position, (kind, s, t) in enumerate(actions):
        if kind == "out":
            held[t] += problem.remat.size[s]
            most[t] = max(most[t], held[t])
            room = problem.tiers[t].capacity
            if room is not None and held[t] > room:
                raise ScheduleError(
                    f"position {position}: tier {problem.tiers[t].name} holds {held[t]} bytes "
                    f"of {room}"
                )
        elif kind.endswith("_done") and last[s, t] == position:
            held[t] -= problem.remat.size[s]
    return tuple(most)


def _times(
    problem: TransferProblem, actions: Sequence[Action], done_at: dict[int, int]
) -> tuple[list[int], list[int], list[Transfer]]:
    """When the processor meets and leaves each action, and when each transfer runs."""
    now = 0
    free: dict[tuple[int, str], int] = {}
    arrives: dict[int, int] = {}  # position of a *_done -> end of its transfer
    starts, ends, transfers = [], [], []
    for position, (kind, index, t) in enumerate(actions):
        starts.append(now)
        if kind == "run":
            now += problem.remat.time[index]
        elif kind == "out" or kind == "in":
            tier, size = problem.tiers[t], problem.remat.size[index]
            took = tier.write_time(size) if kind == "out" else tier.read_time(size)
            begin = max(now, free.get((t, kind), 0))
            now += tier.write_work(size) if kind == "out" else tier.read_work(size)
            free[t, kind] = arrives[done_at[position]] = begin + took
            transfers.append(
                Transfer(index, t, kind, position, done_at[position], begin, begin + took, size)
            )
        else:
            now = max(now, arrives[position])
        ends.append(now)
    return starts, ends, transfers


def _name(problem: TransferProblem, action: Action) -> str:
    kind, index, _ = action
    if kind != "run":
        return f"{kind} of storage {index}"
    label = problem.remat.names[index] if problem.remat.names else ""
    return f"operator {index}" + (f" ({label})" if label else "")
