"""Make a PyTorch training step fit a memory budget."""

from .api import FittedModule, optimize
from .budget import Budget
from .errors import (
    BudgetSyntaxError,
    FxmemError,
    InfeasibleBudget,
    PlanMismatch,
    PoolError,
    TraceError,
    UnsupportedDevice,
)
from .measure import MeasuredStep, measure
from .plan import Keep, Offload, Plan, Recompute

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetSyntaxError",
    "FittedModule",
    "FxmemError",
    "InfeasibleBudget",
    "Keep",
    "MeasuredStep",
    "Offload",
    "Plan",
    "PlanMismatch",
    "PoolError",
    "Recompute",
    "TraceError",
    "UnsupportedDevice",
    "measure",
    "optimize",
]
