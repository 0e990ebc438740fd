"""One self-contained page about a plan: summary, memory over time, table of decisions."""

from __future__ import annotations

import tempfile
from html import escape
from pathlib import Path
from string import Template

from fxmem.budget import format_bytes
from fxmem.measure import MeasuredStep
from fxmem.plan import Plan, Recompute

from .memory import plot_plan

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>fxmem plan $hash</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto;
       padding: 0 1rem; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .75rem; border-bottom: 1px solid #e4e4e4; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.Recompute { color: #b04a00; }
.Keep { color: #005a8e; }
input { font: inherit; padding: .25rem .5rem; margin-bottom: .5rem; }
</style>
<h1>Plan of one training step</h1>
<pre>$summary</pre>
<h2>Memory over time</h2>
$picture
<h2>Decisions</h2>
<p>$count values that backward needs. Click a heading to sort.</p>
<input type="search" id="search" placeholder="search by name" aria-label="search by name">
<table id="decisions">
<thead><tr>
<th><button>value</button></th>
<th><button>decision</button></th>
<th class="number"><button>runs again</button></th>
<th class="number"><button>bytes</button></th>
<th class="number"><button>time of one run</button></th>
</tr></thead>
<tbody>
$rows
</tbody>
</table>
<script>
const table = document.getElementById("decisions"), body = table.tBodies[0];
const key = (row, i) => row.cells[i].dataset.key ?? row.cells[i].textContent;
for (const [i, head] of [...table.tHead.rows[0].cells].entries()) {
  head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) =>
      key(a, i).localeCompare(key(b, i), undefined, { numeric: true }));
    body.append(...(down ? rows.reverse() : rows));
  });
}
document.getElementById("search").addEventListener("input", (event) => {
  for (const row of body.rows) row.hidden = !row.cells[0].textContent.includes(event.target.value);
});
</script>
</html>
""")


def write_report(plan: Plan, path: str | Path, measured: MeasuredStep | None = None) -> None:
    """Write one page that needs nothing else: no network, no other file.

    Parameters
    ----------
    plan : Plan
    path : str or Path
    measured : MeasuredStep, optional

    Raises
    ------
    FxmemError
        matplotlib is not installed.
    """
    page = _PAGE.substitute(
        hash=escape(plan.graph_hash),
        summary=escape(plan.summary()),
        picture=_picture(plan, measured),
        count=len(plan.decisions),
        rows="\n".join(_rows(plan)),
    )
    Path(path).write_text(page, encoding="utf-8")


def _picture(plan: Plan, measured: MeasuredStep | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        plot_plan(plan, Path(folder, "memory.svg"), measured=measured)
        text = Path(folder, "memory.svg").read_text(encoding="utf-8")
    return text[text.index("<svg") :]  # what stands before belongs to files of their own


def _rows(plan: Plan) -> list[str]:
    seconds = {m.name: m.seconds for m in reversed(plan.timeline)}
    largest_first = sorted(plan.decisions, key=lambda name: -plan.value_bytes.get(name, 0))
    rows = []
    for name in largest_first:
        decision, held = plan.decisions[name], plan.value_bytes.get(name, 0)
        kind = type(decision).__name__
        again = decision.times if isinstance(decision, Recompute) else 0
        nanoseconds = round(seconds.get(name, 0.0) * 1e9)
        rows.append(
            f'<tr><td>{escape(name)}</td><td class="{kind}">{kind.lower()}</td>'
            f'<td class="number">{again}</td>'
            f'<td class="number" data-key="{held}">{format_bytes(held)}</td>'
            f'<td class="number" data-key="{nanoseconds}">{nanoseconds * 1e-6:.3f} ms</td></tr>'
        )
    return rows
