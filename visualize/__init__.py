"""Pictures of plans and of measured steps; reads them, changes nothing."""

from .memory import plot_plan, plot_steps

__all__ = ["plot_plan", "plot_steps"]
