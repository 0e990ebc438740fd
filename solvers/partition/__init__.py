"""Partition: where to cut a chain between devices, and what each stage recomputes."""

from .chain import NoPartition, partition_chain
from .check import Replay, check
from .problem import Device, Item, Option, PartitionProblem, Tie
from .schedules import SCHEDULES, Action, actions, in_flight
from .solution import PartitionSolution, StagePlan
from .solve import partition

__all__ = [
    "SCHEDULES",
    "Action",
    "Device",
    "Item",
    "NoPartition",
    "Option",
    "PartitionProblem",
    "PartitionSolution",
    "Replay",
    "StagePlan",
    "Tie",
    "actions",
    "check",
    "in_flight",
    "partition",
    "partition_chain",
]
