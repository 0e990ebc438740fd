"""Seconds and workspace bytes of an operator."""

from .measured import MeasuredCosts
from .table import Cost, CostTable, operator_key

__all__ = ["Cost", "CostTable", "MeasuredCosts", "operator_key"]
