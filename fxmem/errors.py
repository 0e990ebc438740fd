"""Every error that fxmem raises on purpose; each says what to do next."""

from __future__ import annotations

from collections.abc import Iterable

_BLOCKERS_SHOWN = 5


class FxmemError(Exception):
    """Base of all errors that fxmem raises on purpose."""


class InfeasibleBudget(FxmemError, ValueError):
    """No plan meets the budget; raised before any training.

    Parameters
    ----------
    budget_bytes : int
        The budget that was asked for, residents included.
    minimum_bytes : int, optional
        The least peak for which a plan was found. None if no plan was found at all.
    blockers : iterable of (str, int), optional
        Tensors held at the tightest point of the step, as (name, bytes).
    device : str, optional
        The device whose budget cannot be met, where there are several.

    Attributes
    ----------
    budget_bytes, minimum_bytes, blockers, device
        As given; `blockers` as a tuple of (str, int).
    """

    def __init__(
        self,
        budget_bytes: int,
        minimum_bytes: int | None = None,
        blockers: Iterable[tuple[str, int]] = (),
        device: str | None = None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.minimum_bytes = minimum_bytes
        self.blockers = tuple((str(name), int(size)) for name, size in blockers)
        self.device = device
        super().__init__(self._message())

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[object, ...]]:
        # Exception would rebuild from the message alone, and a solver may run in another process.
        return type(self), (self.budget_bytes, self.minimum_bytes, self.blockers, self.device)

    def _message(self) -> str:
        from fxmem.budget import format_bytes  # budget.py imports this module

        def exact(count: int) -> str:
            return f"{format_bytes(count)} ({count} bytes)"

        where = f" on {self.device}" if self.device else ""
        lines = [f"no plan fits the budget of {exact(self.budget_bytes)}{where}."]
        if self.minimum_bytes is None:
            lines.append("No budget was found at which a plan exists.")
            advice = "give a larger budget or a longer time_limit"
        else:
            short = max(0, self.minimum_bytes - self.budget_bytes)
            lines.append(
                f"The least feasible found is {exact(self.minimum_bytes)}, "
                f"{format_bytes(short)} more."
            )
            # In bytes: the rounded figure may lie below the minimum.
            advice = f"give a budget of at least {self.minimum_bytes} bytes"
        if self.blockers:
            largest = sorted(self.blockers, key=lambda blocker: -blocker[1])
            shown = [f"{name} {format_bytes(size)}" for name, size in largest[:_BLOCKERS_SHOWN]]
            if len(largest) > _BLOCKERS_SHOWN:
                shown.append(f"{len(largest) - _BLOCKERS_SHOWN} more")
            lines.append(f"In the way: {', '.join(shown)}.")
        lines.append(
            f"What to do: {advice}; or make the batch smaller; or let values be moved to a "
            "directory on disk with offload=...; or use an optimizer with less state."
        )
        return "\n".join(lines)


class BudgetSyntaxError(FxmemError, ValueError):
    """A budget that cannot be read, with what was probably meant."""


class TraceError(FxmemError):
    """The module could not be captured as one graph: what stopped it, where, and what to do."""


class PlanMismatch(FxmemError):
    """A loaded plan was made for another graph than the one at hand."""


class PoolError(FxmemError):
    """The memory pool cannot hold what is asked of it, or a tensor is not its own to take back."""


class UnsupportedDevice(FxmemError):
    """No costs, memory figures or allocator events can be had for a device."""


class ProfilerBusy(FxmemError):
    """Bytes are to be measured while a profiler runs: there can only be one."""


class BudgetWarning(UserWarning):
    """A step measured over its budget, and the plan was made anew with what was learnt."""


class PipelineError(FxmemError):
    """A step over several processes broke off: another rank failed, hung or went away."""


class TransferError(FxmemError):
    """A value could not be moved to slower memory or back; the step is lost, the next one works.

    Parameters
    ----------
    fault, advice : str
        What happened, and what to do next.
    """

    def __init__(self, fault: str, advice: str) -> None:
        self.fault, self.advice = fault, advice
        super().__init__(fault, advice)

    def __str__(self) -> str:
        return f"{self.fault} {self.advice}"
