"""Pictures of plans and of measured steps; reads them, changes nothing."""

from .graph import render_graph
from .memory import plot_plan, plot_steps
from .page import write_report
from .traces import write_trace

__all__ = ["plot_plan", "plot_steps", "render_graph", "write_report", "write_trace"]
