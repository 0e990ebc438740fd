"""Independent replay of a schedule: the one judge of every solver's answer.

Shares no code with any solver; plain loops over copies, written to be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from .problem import RematProblem


class ScheduleError(ValueError):
    """A schedule breaks a rule of its problem; the message names the first violation."""


def check(problem: RematProblem, sequence: Sequence[int]) -> tuple[int, int]:
    """Replay ``sequence`` and return ``(total_time, peak)``.

    Parameters
    ----------
    problem : RematProblem
    sequence : sequence of int
        Operator numbers in the order in which they run.

    Returns
    -------
    total_time : int
        Sum of the durations of all runs.
    peak : int
        Largest number of bytes alive at once, residents included.

    Raises
    ------
    ScheduleError
        An operator is unknown or missing, reads something never computed, runs twice though
        it must not, or random draws change their order.
    """
    timeline = replay(problem, sequence)
    return sum(problem.time[v] for v in sequence), max(timeline, default=problem.resident_bytes)


def replay(problem: RematProblem, sequence: Sequence[int]) -> list[int]:
    """Bytes alive while each entry of ``sequence`` runs; raises as `check` does."""
    sequence = [int(v) for v in sequence]
    _check_operators(problem, sequence)
    last_use = _last_uses(problem, sequence)
    turn_at = sequence.index(problem.turn) if problem.turn is not None else -1

    alive = problem.resident_bytes
    latest: dict[int, int] = {}  # storage -> position that made its latest copy
    timeline = []
    for position, operator in enumerate(sequence):
        dying = [
            s
            for s in dict.fromkeys(problem.reads[operator])
            if s in latest and last_use[s, latest[s]] == position
        ]
        outputs = sum(problem.size[s] for s in problem.writes[operator])
        during = alive + outputs + problem.workspace[operator]
        if problem.writes[operator]:
            first = problem.writes[operator][0]
            for s in problem.reuse[operator]:
                crosses = latest.get(s, -1) < turn_at < position
                if s in dying and not crosses and problem.size[s] == problem.size[first]:
                    during -= problem.size[first]
                    break
        timeline.append(during)
        alive += outputs - sum(problem.size[s] for s in dying)
        for s in problem.writes[operator]:
            latest[s] = position
            if last_use[s, position] == position:
                alive -= problem.size[s]
    return timeline


def _check_operators(problem: RematProblem, sequence: Sequence[int]) -> None:
    first: dict[int, int] = {}
    for position, operator in enumerate(sequence):
        if not 0 <= operator < problem.count:
            raise ScheduleError(f"position {position}: no operator {operator}")
        if operator in first and (operator in problem.once or operator == problem.turn):
            raise ScheduleError(
                f"position {position}: {_name(problem, operator)} ran at position "
                f"{first[operator]} and must run once"
            )
        first.setdefault(operator, position)
    missing = [v for v in range(problem.count) if v not in first]
    if missing:
        raise ScheduleError(f"{_name(problem, missing[0])} never runs ({len(missing)} do not)")
    for before, after in zip(problem.ordered, problem.ordered[1:], strict=False):
        if first[before] > first[after]:
            raise ScheduleError(
                f"position {first[after]}: {_name(problem, after)} first runs before "
                f"{_name(problem, before)}; their order is fixed"
            )


def _last_uses(problem: RematProblem, sequence: Sequence[int]) -> dict[tuple[int, int], int]:
    """(storage, position that made the copy) -> position of the last read of that copy."""
    latest: dict[int, int] = {}
    last_use: dict[tuple[int, int], int] = {}
    for position, operator in enumerate(sequence):
        for s in problem.reads[operator]:
            if problem.writer[s] < 0:
                continue
            if s not in latest:
                raise ScheduleError(
                    f"position {position}: {_name(problem, operator)} reads storage {s}, "
                    f"which {_name(problem, problem.writer[s])} has not written yet"
                )
            last_use[s, latest[s]] = position
        for s in problem.writes[operator]:
            latest[s] = position
            last_use[s, position] = position
    for s in problem.keep:
        if s in latest:
            last_use[s, latest[s]] = len(sequence)
    return last_use


def _name(problem: RematProblem, operator: int) -> str:
    label = problem.names[operator] if problem.names else ""
    return f"operator {operator}" + (f" ({label})" if label else "")
