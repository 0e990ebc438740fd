"""Moving storages to slower memory and back, decided together with recomputation."""

from .problem import Action, Kind, Tier, TransferProblem

__all__ = ["Action", "Kind", "Tier", "TransferProblem"]
