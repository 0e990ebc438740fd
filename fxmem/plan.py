"""The plan: what happens to every value, what that costs, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arena_plan import ArenaPlan
from .errors import PlanMismatch
from .files.store import read_json, write_json

if TYPE_CHECKING:
    from .measure import MeasuredStep
    from .picture import StepPicture

PLAN_VERSION = 5

#: What bytes are held for, in the order in which they are stacked in pictures.
CATEGORIES = (
    "resident",  # parameters, buffers, inputs, optimizer state
    "gradients",  # of parameters, until the step ends
    "outputs",  # forward outputs that the caller holds
    "kept",  # activations kept from forward to backward
    "recomputed",  # made again
    "temporary",  # everything else between two operators
    "workspace",  # inside one operator
)


@dataclass(frozen=True)
class Keep:
    """The value stays in memory from forward to backward."""


@dataclass(frozen=True)
class Recompute:
    """The value is freed and computed again, ``times`` times."""

    times: int = 1


@dataclass(frozen=True)
class Offload:
    """The value is moved from ``src`` to ``dst`` and back."""

    src: str
    dst: str


Decision = Keep | Recompute | Offload


@dataclass(frozen=True)
class Moment:
    """One operator of the step.

    Attributes
    ----------
    name : str
        Node of the traced graph.
    phase : str
        ``"forward"`` or ``"backward"``.
    recomputed : bool
        Does it make again what was freed?
    start, seconds : float
        When it starts, counted from the start of the step, and how long it takes; predicted.
    held : tuple of int
        Bytes held while it runs, by `CATEGORIES`.
    """

    name: str
    phase: str
    recomputed: bool
    start: float
    seconds: float
    held: tuple[int, ...]

    @property
    def live_bytes(self) -> int:
        """All bytes held while it runs."""
        return sum(self.held)


@dataclass(frozen=True)
class Transfer:
    """One transfer between memory and a slower tier.

    Attributes
    ----------
    value : str
        Node of the traced graph.
    tier : str
    direction : str
        ``"out"`` or ``"in"``.
    bytes : int
    asked, done : int
        Numbers in the sequence of the operators before which it is asked for and waited for.
    start, end : float
        When its link works on it, in seconds from the start of the step; predicted.
    stall : float
        Seconds that the step waits for it.
    toll : float
        Seconds of the processor that it takes.
    """

    value: str
    tier: str
    direction: str
    bytes: int
    asked: int
    done: int
    start: float
    end: float
    stall: float
    toll: float = 0.0

    def hides_behind(self, plan: Plan) -> tuple[str, ...]:
        """The operators that run meanwhile."""
        return tuple(
            m.name for m in plan.timeline if m.start < self.end and m.start + m.seconds > self.start
        )


@dataclass(frozen=True)
class DeviceShare:
    """What one of several devices does and holds.

    Attributes
    ----------
    device : str
    first : str
        Operator of the traced graph with which its stage begins; empty if it has none.
    budget_bytes : int or None
    resident_bytes, peak_bytes : int
        Predicted, on this device alone.
    seconds : float
        Of its operators, copies from other devices included.
    """

    device: str
    first: str
    budget_bytes: int | None
    resident_bytes: int
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """A schedule in the graph's own names, with its prediction and its bound.

    Bytes are integers and count residents; times are seconds.

    Attributes
    ----------
    budget_bytes : int or None
        None: no limit.
    peak_bytes, baseline_peak_bytes : int
        Predicted peak of the planned step, and of the same step with everything kept.
    resident_bytes : int
        Parameters, buffers, inputs, optimizer state and what gradients exist already.
    seconds, baseline_seconds : float
        Predicted time of the planned step, and of the step with nothing recomputed.
    lower_bound_seconds : float
        No schedule within the budget takes less, by the same costs.
    status : str
        ``"optimal"`` or ``"feasible"``.
    solver : str
    sequence : tuple of str
        Operators in the order in which they run; ``"turn"`` between forward and backward.
    decisions : mapping
        Value name -> `Keep`, `Recompute` or `Offload`, for every value that backward needs.
    value_bytes : mapping
        Value name -> bytes, for the same values.
    timeline : tuple of Moment
    graph_hash : str
        Of the traced graph; a plan fits no other.
    seed : int
    stages : tuple
        Cut points over several devices: the operators at which a further stage begins. Empty
        on one.
    transfers : tuple of Transfer
        In the order in which they are asked for.
    devices : tuple of DeviceShare
        In the order in which the forward part visits them. Empty on one device.
    pool : ArenaPlan or None
        Offsets of what the step asks for, when it runs in one arena.
    picture : StepPicture or None
        What is drawn: the graph, lifetimes of values, the solver's progress. None in plans that
        older versions wrote.
    """

    budget_bytes: int | None
    peak_bytes: int
    resident_bytes: int
    baseline_peak_bytes: int
    seconds: float
    baseline_seconds: float
    lower_bound_seconds: float
    status: str
    solver: str
    sequence: tuple[str, ...]
    decisions: Mapping[str, Decision]
    value_bytes: Mapping[str, int]
    timeline: tuple[Moment, ...]
    graph_hash: str
    seed: int = 0
    stages: tuple[Any, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    devices: tuple[DeviceShare, ...] = ()
    pool: ArenaPlan | None = None
    picture: StepPicture | None = None
    version: int = field(default=PLAN_VERSION)

    @property
    def overhead(self) -> float:
        """Predicted share of time that the budget costs."""
        return self.seconds / self.baseline_seconds - 1 if self.baseline_seconds else 0.0

    @property
    def gap(self) -> float:
        """How far ``seconds`` may lie above the optimum, as a share of the bound."""
        return self.seconds / self.lower_bound_seconds - 1 if self.lower_bound_seconds else 0.0

    def summary(self) -> str:
        """The plan in a few lines."""
        from .summary import summarise

        return summarise(self)

    def peak_moment(self) -> Moment | None:
        """The operator at which the predicted peak lies."""
        return max(self.timeline, key=lambda m: m.live_bytes, default=None)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        from .files.plan_file import to_row

        write_json(Path(path), to_row(self), indent=1)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` wrote; a file is data, nothing in it is run.

        Raises
        ------
        PlanMismatch
            The file is damaged, or of a newer version.
        OSError
            It cannot be read.
        """
        from .files.plan_file import from_row

        try:
            return from_row(read_json(Path(path)))
        except (ValueError, RecursionError) as error:
            told = f"{path} is no plan for this fxmem ({error}). Make the plan anew."
            raise PlanMismatch(told) from error

    def render(self, path: str | Path, level: str | None = None) -> None:
        """Draw the graph as SVG, PNG, PDF or graphviz's own ``.dot``.

        Parameters
        ----------
        path : str or Path
            Its suffix says what to write.
        level : {"layers", "modules", "operators"}, optional
            How far to fold. Left out: by size.
        """
        from .visualize import render_graph

        render_graph(self, path, level)

    def plot(
        self, path: str | Path, kind: str = "memory", measured: MeasuredStep | None = None
    ) -> None:
        """Draw memory over time, or (``kind="pool"``) where each block lies in the arena.

        What `measure` found is drawn over the prediction.
        """
        from .visualize import plot_plan

        plot_plan(self, path, kind=kind, measured=measured)

    def trace(self, path: str | Path, measured: MeasuredStep | None = None) -> None:
        """Write a trace: ``.json`` for Perfetto, ``.pickle`` for PyTorch's memory visualiser."""
        from .visualize import write_trace

        write_trace(self, path, measured)

    def report(self, path: str | Path, measured: MeasuredStep | None = None) -> None:
        """Write one self-contained page, with what `measure` found beside the prediction."""
        from .visualize import write_report

        write_report(self, path, measured)
