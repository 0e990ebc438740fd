"""Partition: where to cut a chain of layers between devices."""

from .chain import NoPartition, partition_chain

__all__ = ["NoPartition", "partition_chain"]
