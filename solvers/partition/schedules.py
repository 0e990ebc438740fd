"""Pipeline schedules as lists of actions, one list a rank, and what follows from the lists.

Stage ``s`` lies on rank ``s % ranks``.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


class Action(NamedTuple):
    """One microbatch in one stage.

    ``F`` forward, ``B`` backward, or in two halves ``I`` (gradient of the stage's input) and
    ``W`` (gradients of its parameters).
    """

    rank: int
    kind: Kind
    stage: int
    microbatch: int


def actions(
    schedule: str, ranks: int, microbatches: int, chunks: int = 1
) -> tuple[tuple[Action, ...], ...]:
    """The actions of each rank, in order.

    Parameters
    ----------
    schedule : str
        ``"gpipe"`` (Huang et al. 2019), ``"1f1b"`` (with flush: DAPPLE, Fan et al. 2021),
        ``"interleaved"`` (Narayanan et al. 2021, section 2.2) or ``"zero-bubble"`` (ZB-H1 of
        Qi et al. 2024).
    ranks, microbatches : int
    chunks : int
        Stages a rank; more than one for ``"interleaved"`` only, whose microbatches are then a
        multiple of ``ranks``.

    Raises
    ------
    ValueError
        A schedule that is not known, or numbers that do not suit it.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(SCHEDULES)}")
    if min(ranks, microbatches, chunks) < 1:
        raise ValueError("ranks, microbatches and chunks must be positive")
    if chunks > 1 and schedule != "interleaved":
        raise ValueError(f"{schedule} has one stage a rank, not {chunks}")
    if chunks > 1 and microbatches % ranks:
        raise ValueError(f"interleaved needs a multiple of {ranks} microbatches")
    if schedule == "gpipe":
        return tuple(_gpipe(rank, microbatches) for rank in range(ranks))
    if schedule == "zero-bubble":
        return tuple(_zero_bubble(rank, ranks, microbatches) for rank in range(ranks))
    if chunks == 1:
        return tuple(_one_f_one_b(rank, ranks, microbatches) for rank in range(ranks))
    return tuple(_interleaved(rank, ranks, microbatches, chunks) for rank in range(ranks))


def in_flight(order: tuple[Action, ...]) -> list[dict[int, int]]:
    """Microbatches whose activations each stage of a rank holds, during each action.

    From the forward to the end of the last action on the microbatch.
    """
    closing = "W" if any(action.kind == "W" for action in order) else "B"
    live: Counter[int] = Counter()
    held = []
    for action in order:
        live[action.stage] += action.kind == "F"
        held.append(dict(live))
        live[action.stage] -= action.kind == closing
    return held


def _gpipe(rank: int, microbatches: int) -> tuple[Action, ...]:
    return tuple(Action(rank, kind, rank, m) for kind in ("F", "B") for m in range(microbatches))


def _one_f_one_b(rank: int, ranks: int, microbatches: int) -> tuple[Action, ...]:
    ahead = min(ranks - rank - 1, microbatches)
    order = [Action(rank, "F", rank, m) for m in range(ahead)]
    for m in range(ahead, microbatches):
        order += [Action(rank, "F", rank, m), Action(rank, "B", rank, m - ahead)]
    order += [Action(rank, "B", rank, m) for m in range(microbatches - ahead, microbatches)]
    return tuple(order)


def _zero_bubble(rank: int, ranks: int, microbatches: int) -> tuple[Action, ...]:
    """1F1B whose ``W`` lag behind by the rank: every rank holds ``ranks`` microbatches at most."""
    order: list[Action] = []
    done = waiting = 0
    for action in _one_f_one_b(rank, ranks, microbatches):
        if action.kind == "F":
            order.append(action)
            continue
        order.append(action._replace(kind="I"))
        waiting += 1
        if waiting > rank:
            order.append(Action(rank, "W", rank, done))
            done, waiting = done + 1, waiting - 1
    order += [Action(rank, "W", rank, m) for m in range(done, microbatches)]
    return tuple(order)


def _interleaved(rank: int, ranks: int, microbatches: int, chunks: int) -> tuple[Action, ...]:
    total = microbatches * chunks
    forward, backward = [], []
    for step in range(total):
        group, place = divmod(step, ranks * chunks)
        chunk, m = place // ranks, group * ranks + place % ranks
        forward.append(Action(rank, "F", chunk * ranks + rank, m))
        backward.append(Action(rank, "B", (chunks - 1 - chunk) * ranks + rank, m))
    ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)
    order = forward[:ahead]
    for step in range(ahead, total):
        order += [forward[step], backward[step - ahead]]
    return tuple(order + backward[total - ahead :])
