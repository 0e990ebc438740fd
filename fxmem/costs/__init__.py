"""Seconds and workspace bytes of an operator."""

from .datasheet import DEVICES, DatasheetCosts, Device, find_device
from .measured import MeasuredCosts
from .table import Cost, CostTable, RecordedCosts, operator_key

__all__ = [
    "DEVICES",
    "Cost",
    "CostTable",
    "DatasheetCosts",
    "Device",
    "MeasuredCosts",
    "RecordedCosts",
    "find_device",
    "operator_key",
]
