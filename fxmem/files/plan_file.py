"""A plan as a row of JSON, and back: every field of the kind that it should be, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from ..arena_plan import ArenaPlan
from ..picture import PHASES, StepPicture
from ..plan import (
    CATEGORIES,
    PLAN_VERSION,
    Decision,
    DeviceShare,
    Keep,
    Moment,
    Offload,
    Plan,
    Recompute,
    Transfer,
)

_DECISIONS = {"Keep": Keep, "Recompute": Recompute, "Offload": Offload}


def to_row(plan: Plan) -> dict[str, Any]:
    """The plan in dictionaries, lists, numbers and text."""
    row = {f.name: getattr(plan, f.name) for f in fields(plan)}
    row["value_bytes"] = dict(plan.value_bytes)
    row["pool"] = plan.pool.to_row() if plan.pool else None
    row["picture"] = plan.picture.to_row() if plan.picture else None
    row["decisions"] = {
        name: {"kind": type(d).__name__, **asdict(d)} for name, d in plan.decisions.items()
    }
    row["transfers"] = [list(asdict(t).values()) for t in plan.transfers]
    row["devices"] = [list(asdict(d).values()) for d in plan.devices]
    row["timeline"] = [list(asdict(m).values()) for m in plan.timeline]
    return row


def from_row(row: Any) -> Plan:
    """The plan that `to_row` took apart.

    Raises
    ------
    ValueError
        A field is missing, unknown, or of another kind; or the version is newer.
    """
    version = row.get("version") if isinstance(row, dict) else None
    if isinstance(version, int) and version > PLAN_VERSION:
        raise ValueError(f"of a newer fxmem: version {version}, this one reads {PLAN_VERSION}")
    if isinstance(row, dict) and row.get("version") == 1:
        row = {"picture": None, **row}  # plans had none
    if isinstance(row, dict) and row.get("version") in (1, 2):
        row = {"transfers": [], **row}
    if isinstance(row, dict) and row.get("version") in (1, 2, 3):
        row = {"devices": [], **row}
    if not isinstance(row, dict) or set(row) != set(_FIELDS):
        raise ValueError(f"its fields are not those of a plan: {_names(row)}")
    for name, is_right in _FIELDS.items():
        if not is_right(row[name]):
            raise ValueError(f"{name} is {str(row[name])[:80]!r}")
    if row["picture"] and any(
        life[4] >= len(row["timeline"]) for life in row["picture"]["lifetimes"]
    ):
        raise ValueError("a value lives beyond the end of the step")
    row = dict(row)
    row["decisions"] = {name: _decision(d) for name, d in row["decisions"].items()}
    row["timeline"] = tuple(Moment(n, p, r, s, t, tuple(h)) for n, p, r, s, t, h in row["timeline"])
    row["transfers"] = tuple(Transfer(*t) for t in row["transfers"])
    row["devices"] = tuple(DeviceShare(*d) for d in row["devices"])
    row["pool"] = ArenaPlan.from_row(row["pool"]) if row["pool"] else None
    row["picture"] = StepPicture.from_row(row["picture"]) if row["picture"] else None
    row["sequence"], row["stages"] = tuple(row["sequence"]), tuple(row["stages"])
    return Plan(**row)


def _names(row: Any) -> str:
    return ", ".join(map(str, row))[:80] if isinstance(row, dict) else type(row).__name__


def _decision(row: Mapping[str, Any]) -> Decision:
    return _DECISIONS[row["kind"]](**{k: v for k, v in row.items() if k != "kind"})


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _seconds(value: Any) -> bool:
    return type(value) in (int, float)


def _flag(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_right, value.values()))


def _list(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_right, value))


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


def _is_decision(row: Any) -> bool:
    wanted: dict[str, dict[str, Callable[[Any], bool]]] = {
        "Keep": {},
        "Recompute": {"times": _count},
        "Offload": {"src": _text, "dst": _text},
    }
    if not isinstance(row, dict) or not _text(row.get("kind")) or row["kind"] not in wanted:
        return False
    needed = wanted[row["kind"]]
    return set(row) == {"kind", *needed} and all(is_right(row[k]) for k, is_right in needed.items())


def _is_request(row: Any) -> bool:
    return _row_of(_text, _text, _count, _count, _count, _or_none(_count))(row)


def _is_pool(row: Any) -> bool:
    names = {f.name for f in fields(ArenaPlan)}
    return (
        isinstance(row, dict)
        and set(row) == names
        and all(_count(row[name]) for name in names - {"requests"})
        and _list(_is_request)(row["requests"])
    )


def _row_of(*wanted: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda row: (
        isinstance(row, list)
        and len(row) == len(wanted)
        and all(is_right(value) for is_right, value in zip(wanted, row, strict=True))
    )


def _one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: _text(value) and value in choices


def _is_picture(row: Any) -> bool:
    operator = _row_of(_text, _text, _count, _one_of(*PHASES), _count, _seconds, _list(_count))
    life = _row_of(_text, _count, _one_of(*CATEGORIES), _count, _count)
    wanted: dict[str, Callable[[Any], bool]] = {
        "modules": _list(_text),
        "operators": _list(operator),
        "lifetimes": _list(life),
        "residents": _table(_count),
        "owners": _table(_text),
        "progress": _list(_row_of(_seconds, _seconds, _seconds)),
    }
    return (
        isinstance(row, dict)
        and set(row) | {"owners"} == set(wanted)  # plans of before had none
        and all(is_right(row[name]) for name, is_right in wanted.items() if name in row)
        and all(o[2] < len(row["modules"]) for o in row["operators"])
        and all(i < len(row["operators"]) for o in row["operators"] for i in o[6])
    )


def _is_moment(row: Any) -> bool:
    is_right = _row_of(_text, _text, _flag, _seconds, _seconds, _list(_count))
    return is_right(row) and len(row[-1]) == len(CATEGORIES)


def _is_transfer(row: Any) -> bool:
    known = (_text, _text, _one_of("out", "in"), _count, _count, _count)
    counts = (3, 4)  # up to version 4 there were no tolls
    return any(_row_of(*known, *count * [_seconds])(row) for count in counts)


def _is_device(row: Any) -> bool:
    return _row_of(_text, _text, _or_none(_count), _count, _count, _seconds)(row)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "budget_bytes": _or_none(_count),
    "peak_bytes": _count,
    "resident_bytes": _count,
    "baseline_peak_bytes": _count,
    "seconds": _seconds,
    "baseline_seconds": _seconds,
    "lower_bound_seconds": _seconds,
    "status": _text,
    "solver": _text,
    "sequence": _list(_text),
    "decisions": _table(_is_decision),
    "value_bytes": _table(_count),
    "timeline": _list(_is_moment),
    "graph_hash": _text,
    "seed": lambda value: type(value) is int,
    "stages": lambda value: isinstance(value, list),
    "transfers": _list(_is_transfer),
    "devices": _list(_is_device),
    "pool": _or_none(_is_pool),
    "picture": _or_none(_is_picture),
    "version": lambda value: type(value) is int,
}
