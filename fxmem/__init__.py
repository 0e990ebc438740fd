"""Make a PyTorch training step fit a memory budget."""

from .api import FittedModule, optimize, plan
from .budget import Budget
from .costs import Device
from .errors import (
    BudgetSyntaxError,
    FxmemError,
    InfeasibleBudget,
    PipelineError,
    PlanMismatch,
    PoolError,
    TraceError,
    UnsupportedDevice,
)
from .estimate import MemorySavingsEstimate
from .manager import TrainingMemoryManager
from .manager_config import TrainingMemoryConfig
from .measure import MeasuredStep, measure
from .parallel import Pipeline, pipeline
from .plan import Keep, Offload, Plan, Recompute
from .pool import ActivationPool, PoolStats

__version__ = "0.1.0"

__all__ = [
    "ActivationPool",
    "Budget",
    "BudgetSyntaxError",
    "Device",
    "FittedModule",
    "FxmemError",
    "InfeasibleBudget",
    "Keep",
    "MeasuredStep",
    "MemorySavingsEstimate",
    "Offload",
    "Pipeline",
    "PipelineError",
    "Plan",
    "PlanMismatch",
    "PoolError",
    "PoolStats",
    "Recompute",
    "TraceError",
    "TrainingMemoryConfig",
    "TrainingMemoryManager",
    "UnsupportedDevice",
    "measure",
    "optimize",
    "pipeline",
    "plan",
]
