"""Pictures of plans and of measured steps; reads them, changes nothing."""

from .frontier import plot_frontier
from .graph import render_graph
from .memory import plot_plan, plot_steps
from .page import write_comparison, write_report
from .traces import write_trace

__all__ = [
    "plot_frontier",
    "plot_plan",
    "plot_steps",
    "render_graph",
    "write_comparison",
    "write_report",
    "write_trace",
]
