"""The step's operators as a graph, from the plan alone: forward down, backward up beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import graphviz

from fxmem.budget import format_bytes
from fxmem.errors import FxmemError
from fxmem.plan import Keep, Moment, Plan, Recompute

# Kind of run -> (words, shape, fill, ink): told apart by shape as well as by colour.
KINDS = {
    "kept": ("kept for backward", "box", "#0072B2", "white"),
    "dropped": ("freed, computed again later", "ellipse", "#F5C9A8", "black"),
    "again": ("computed again", "hexagon", "#D55E00", "white"),
    "other": ("used up on the way", "plaintext", "#EEEEEE", "black"),
}
_NAMES_SHOWN = 3


@dataclass(frozen=True)
class Block:
    """Neighbouring runs of one kind.

    Attributes
    ----------
    kind : str
        Key of `KINDS`.
    runs : tuple of Moment
    """

    kind: str
    runs: tuple[Moment, ...]

    def label(self, plan: Plan) -> str:
        """Names, milliseconds and bytes."""
        names = [run.name for run in self.runs[:_NAMES_SHOWN]]
        more = len(self.runs) - len(names)
        if more:
            names.append(f"and {more} more")
        figures = f"{sum(run.seconds for run in self.runs) * 1e3:.2f} ms"
        held = sum(plan.value_bytes.get(run.name, 0) for run in self.runs)
        if held and self.kind != "other":
            figures += f", {format_bytes(held)}"
        return "\n".join((*names, figures))


def blocks_of(plan: Plan, phase: str) -> tuple[Block, ...]:
    """The runs of one phase, neighbours of the same kind together."""
    runs = [m for m in plan.timeline if m.phase == phase]
    return tuple(
        Block(kind, tuple(together)) for kind, together in groupby(runs, lambda m: _kind(plan, m))
    )


def _kind(plan: Plan, run: Moment) -> str:
    if run.recomputed:
        return "again"
    decision = plan.decisions.get(run.name)
    return {Keep: "kept", Recompute: "dropped"}.get(type(decision), "other")


def graph_of(plan: Plan) -> graphviz.Digraph:
    """The picture in graphviz's language."""
    graph = graphviz.Digraph("step", node_attr={"fontname": "Helvetica", "fontsize": "10"})
    graph.attr(rankdir="TB", nodesep="0.4", ranksep="0.25", newrank="true", fontname="Helvetica")
    graph.attr(label=plan.summary().replace("\n", "\\l") + "\\l", labeljust="l", labelloc="t")
    made: dict[str, str] = {}  # operator -> node of its first run
    dashed: dict[tuple[str, str], None] = {}
    for phase in ("forward", "backward"):
        with graph.subgraph(name=f"cluster_{phase}") as part:
            part.attr(label=phase, color="#BBBBBB", style="rounded")
            before = None
            for number, block in enumerate(blocks_of(plan, phase)):
                node = f"{phase}{number}"
                _, shape, fill, ink = KINDS[block.kind]
                look = {"shape": shape, "style": "filled", "fillcolor": fill, "fontcolor": ink}
                part.node(node, graphviz.escape(block.label(plan)).replace("\n", "\\n"), **look)
                if before is not None and phase == "forward":
                    part.edge(before, node)
                elif before is not None:
                    # Backward climbs, so that what it computes again stands beside its origin.
                    part.edge(node, before, dir="back")
                before = node
                for run in block.runs:
                    if made.setdefault(run.name, node) != node:
                        dashed[made[run.name], node] = None
    for origin, node in dashed:
        graph.edge(origin, node, style="dashed", color=KINDS["again"][2], constraint="false")
    with graph.subgraph(name="cluster_legend") as legend:
        legend.attr(label="legend", color="#BBBBBB", style="rounded")
        for name, words, look in _legend():
            legend.node(name, words, **look)
    return graph


def _legend() -> Iterator[tuple[str, str, dict[str, str]]]:
    for kind, (words, shape, fill, ink) in KINDS.items():
        look = {"shape": shape, "style": "filled", "fillcolor": fill, "fontcolor": ink}
        yield f"legend_{kind}", words, look


def render_graph(plan: Plan, path: str | Path) -> None:
    """Draw the step's operators, grouped by what becomes of their results.

    Parameters
    ----------
    plan : Plan
    path : str or Path
        Ends in ``.dot`` for the source, or in a format of graphviz's, such as ``.svg``.

    Raises
    ------
    FxmemError
        The ``dot`` program is missing (the source is then left beside ``path``), or it does
        not know the format.
    """
    path = Path(path)
    graph = graph_of(plan)
    if path.suffix in (".dot", ".gv"):
        path.write_text(graph.source)
        return
    if path.suffix[1:].lower() not in graphviz.FORMATS:
        raise FxmemError(f"graphviz writes no {path.suffix!r}; name {path.name} .svg, .png or .dot")
    try:
        path.write_bytes(graph.pipe(format=path.suffix[1:].lower()))
    except graphviz.ExecutableNotFound as error:
        source = path.with_suffix(".dot")
        source.write_text(graph.source)
        raise FxmemError(
            f"drawing needs the program 'dot' of graphviz, which is not installed; the graph was "
            f"written to {source}. Install graphviz, then: dot -T{path.suffix[1:]} {source} "
            f"-o {path}"
        ) from error
    except graphviz.CalledProcessError as error:
        raise FxmemError(f"dot could not draw {path}: {error}") from error
