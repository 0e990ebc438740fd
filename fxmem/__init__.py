"""Make a PyTorch training step fit a memory budget."""

from .api import FittedModule, optimize, plan
from .budget import Budget
from .costs import Device
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
    "Device",
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
    "plan",
]
