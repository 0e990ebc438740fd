"""Tables of a page: cells that sort by a number that is not shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fxmem.budget import format_bytes
from fxmem.plan import Plan, Recompute


def decisions_table(plan: Plan) -> str:
    """A row for each value that backward needs, largest first, and a field to search them."""
    seconds = {m.name: m.seconds for m in reversed(plan.timeline)}
    operators = plan.picture.operators if plan.picture else ()
    modules = {o.name: o.module.replace("/", ".") for o in operators}
    owners = plan.picture.owners if plan.picture else {}
    modules.update({value: modules.get(operator, "") for value, operator in owners.items()})
    rows, names = [], []
    for name in sorted(plan.decisions, key=lambda n: -plan.value_bytes.get(n, 0)):
        decision = plan.decisions[name]
        kind = type(decision).__name__.lower()
        again = decision.times if isinstance(decision, Recompute) else 0
        one = seconds.get(name, 0.0)
        names.append(f"{name} {modules.get(name, '')}")
        rows.append((
            f'<button class="find">{escape(name)}</button>',
            escape(modules.get(name, "")),
            f'<span class="{kind}">{kind}</span>',
            _number(again, str(again)),
            _bytes(plan.value_bytes.get(name, 0)),
            _milliseconds(one),
            _milliseconds(again * one),
        ))  # fmt: skip
    heads = ("value", "module", "decision", "runs again", "bytes", "one run", "time spent again")
    return (
        f'<p class="note">{len(rows)} values that backward needs.</p><div class="bar">'
        '<input type="search" id="search" placeholder="search by name or module" '
        'aria-label="search by name or module"></div>' + table("decisions", heads, rows, names)
    )


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each solver and budget, of `Comparison.to_rows`."""
    return table("plans", *_compared(rows))


def _compared(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a comparison; columns that nobody filled are left out."""
    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
        "solver": ("solver", escape),
        "budget": ("budget", escape),
        "status": ("status", escape),
        "peak_bytes": ("peak", _bytes),
        "seconds": ("time", _milliseconds),
        "overhead": ("overhead", _share),
        "gap": ("gap", _share),
        "planning_seconds": ("planned in", lambda s: _number(round(s * 1e3), f"{s:.1f} s")),
        "measured_peak_bytes": ("peak, measured", _bytes),
        "measured_seconds": ("time, measured", _milliseconds),
        "measured_overhead": ("overhead, measured", _share),
    }
    filled = [key for key in columns if any(row[key] is not None for row in rows)]
    cells = [
        ["" if row[key] is None else columns[key][1](row[key]) for key in filled] for row in rows
    ]
    return [columns[key][0] for key in filled], cells


def _share(share: float) -> str:
    # Shares may lie below zero; keys count up from what none of them reaches.
    return _number(round((share + 10) * 1e6), f"{share:+.1%}")


def _bytes(count: int) -> str:
    return _number(count, format_bytes(count))


def _milliseconds(seconds: float) -> str:
    return _number(round(seconds * 1e9), f"{seconds * 1e3:.3f} ms")


def _number(key: int, words: str) -> str:
    return f"<!--{key}-->{words}"


def table(
    name: str, heads: Sequence[str], rows: Iterable[Sequence[str]], names: Iterable[str] = ()
) -> str:
    """A table that sorts; a cell that begins with a number in a comment sorts by it."""
    known = list(names)
    lines = []
    numeric: set[int] = set()
    for i, row in enumerate(rows):
        cells = []
        for column, cell in enumerate(row):
            key = re.match(r"<!--(\d+)-->", cell)
            if key:
                numeric.add(column)
                cell = f'<td class="number" data-key="{key[1]}">{cell[key.end() :]}</td>'
            else:
                cell = f"<td>{cell}</td>"
            cells.append(cell)
        about = f' data-names="{escape(known[i])}"' if known else ""
        lines.append(f"<tr{about}>{''.join(cells)}</tr>")
    head = "".join(
        f"<th{' class=number' if i in numeric else ''}><button>{escape(h)}</button></th>"
        for i, h in enumerate(heads)
    )
    return (
        f'<div class="rows"><table class="sorted" id="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
