"""Make a PyTorch training step fit a memory budget."""

import torch

from . import logs
from .api import FittedModule, optimize, plan
from .budget import Budget
from .compare import compare
from .comparison import ComparedPlan, Comparison
from .costs import Device
from .errors import (
    BudgetSyntaxError,
    FxmemError,
    InfeasibleBudget,
    PipelineError,
    PlanMismatch,
    PoolError,
    ProfilerBusy,
    TraceError,
    TransferError,
    UnsupportedDevice,
)
from .layers.estimate import MemorySavingsEstimate
from .manager import TrainingMemoryManager
from .manager_config import TrainingMemoryConfig
from .measure import MeasuredStep, measure
from .parallel import pipeline
from .plan import Keep, Offload, Plan, Recompute
from .pool import ActivationPool, PoolStats
from .stages.pipeline_run import Pipeline
from .versions import warn_if_untested

__version__ = "0.1.0"

logs.register()
warn_if_untested(torch.__version__)

__all__ = [
    "ActivationPool",
    "Budget",
    "BudgetSyntaxError",
    "ComparedPlan",
    "Comparison",
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
    "ProfilerBusy",
    "Recompute",
    "TraceError",
    "TrainingMemoryConfig",
    "TrainingMemoryManager",
    "TransferError",
    "UnsupportedDevice",
    "compare",
    "measure",
    "optimize",
    "pipeline",
    "plan",
]
