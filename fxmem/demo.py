"""The demo: GPT-2 trained plain, and under a share of that memory, step beside step."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .allocator import record
from .api import FittedModule, optimize
from .errors import FxmemError
from .measure import MeasuredStep
from .plan import Plan
from .residents import count_residents

_RECORDED_EVERY = 4  # steps; recording slows a step, so these are not timed
_RATE = 1e-3

Progress = Callable[[str, Mapping[str, Any]], None]


class LanguageModel(torch.nn.Module):
    """A Transformers language model with its loss inside: tokens in, scalar out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of each next token.

        Parameters
        ----------
        tokens : torch.Tensor
            Integers, (batch, length).
        """
        logits = self.model(input_ids=tokens).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def gpt2(
    layers: int = 12,
    width: int = 192,
    batch: int = 8,
    length: int = 128,
    vocab: int = 4096,
    dropout: float = 0.0,
) -> tuple[LanguageModel, tuple[torch.Tensor]]:
    """GPT-2 from a configuration, with random weights; nothing is downloaded.

    Returns
    -------
    module, example_inputs
        As `optimize` and the command line take them.

    Raises
    ------
    FxmemError
        Transformers is not installed.
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise FxmemError(
            "the demo's model needs transformers, which is not installed: "
            "pip install 'fxmem[models]'"
        ) from error
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=max(1, width // 48),
        vocab_size=vocab,
        n_positions=length,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LanguageModel(GPT2LMHeadModel(config)), (_tokens(0, batch, length, vocab),)


def _tokens(step: int, batch: int, length: int, vocab: int) -> torch.Tensor:
    """Sequences that count upwards, of few words, so that twenty steps learn something."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, max(1, vocab // 64), (batch, 1), generator=generator)
    return (start + torch.arange(length)) % vocab


@dataclass
class Trained:
    """One way of training the model: what it did, step by step.

    Attributes
    ----------
    losses : list of float
    seconds : list of float
        Of the steps that were timed.
    recorded : list of MeasuredStep
        The steps whose memory was recorded, from the first one on.
    """

    module: torch.nn.Module
    run: Callable[..., Any]
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    recorded: list[MeasuredStep] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        """Highest peak of all recorded steps."""
        return max(step.peak_bytes for step in self.recorded)

    @property
    def settled(self) -> MeasuredStep:
        """The quickest recorded step after the first, in which the optimizer gets its state."""
        return min(self.recorded[1:] or self.recorded, key=lambda step: step.seconds)

    @property
    def median_seconds(self) -> float:
        """Median of the timed steps; not a number where none was timed."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    def step(self, tokens: torch.Tensor) -> None:
        """One training step."""
        loss = self.run(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.item())

    def step_timed(self, tokens: torch.Tensor) -> None:
        """One training step against the clock."""
        start = time.perf_counter()
        self.step(tokens)
        self.seconds.append(time.perf_counter() - start)

    def step_recorded(self, tokens: torch.Tensor) -> None:
        """One training step with every event of the allocator recorded."""
        # Before the first step there is no optimizer state; it is then made in the step.
        state = self.optimizer if self.optimizer.state else None
        resident = count_residents(self.module, tokens, state).total
        recording = record(lambda: self.step(tokens))
        timeline = tuple((t * 1e-9, resident + live) for t, live in recording.timeline)
        seconds = timeline[-1][0] if timeline else 0.0
        self.recorded.append(MeasuredStep(resident + recording.peak, resident, seconds, timeline))


@dataclass(frozen=True)
class DemoResult:
    """What the demo saw.

    Attributes
    ----------
    plain, fitted : Trained
    budget_bytes : int
    plan : Plan
    loss_difference, parameter_difference : float
        Largest absolute differences, over all steps and over all parameters at the end.
    """

    plain: Trained
    fitted: Trained
    budget_bytes: int
    plan: Plan
    loss_difference: float
    parameter_difference: float

    @property
    def budget_kept(self) -> bool:
        """Was every recorded step within the budget?"""
        return self.fitted.peak_bytes <= self.budget_bytes

    @property
    def passed(self) -> bool:
        """Was the budget kept, and every loss the same to the last bit?"""
        return self.budget_kept and self.loss_difference == 0

    @property
    def slowdown(self) -> float:
        """Median step time, as a multiple of the plain step's."""
        return self.fitted.median_seconds / self.plain.median_seconds


def run_demo(
    steps: int = 20,
    share: float = 0.5,
    layers: int = 12,
    width: int = 192,
    batch: int = 8,
    length: int = 128,
    vocab: int = 4096,
    time_limit: float = 30.0,
    progress: Progress | None = None,
) -> DemoResult:
    """Train GPT-2 plain and under a share of its measured memory, step beside step.

    Both start from the same weights and see the same tokens. Every fourth step of each, from
    the first on, is recorded; the others are timed.

    Parameters
    ----------
    steps : int
        At least 2.
    share : float
        Of the plain step's measured peak.
    layers, width, batch, length, vocab : int
        Of the model and its input.
    time_limit : float
        Seconds for the solver.
    progress : callable, optional
        As in `optimize`; also told the stage ``"train"`` with ``done`` and ``total``.

    Raises
    ------
    InfeasibleBudget
        No plan fits the share.
    """
    torch.manual_seed(0)
    module, inputs = gpt2(layers, width, batch, length, vocab)
    module.train()
    twin = copy.deepcopy(module)
    budget = int(share * plain_peak(copy.deepcopy(module), *inputs))

    optimizer = torch.optim.AdamW(twin.parameters(), lr=_RATE)
    run = optimize(
        twin, budget, inputs, optimizer=optimizer, time_limit=time_limit, progress=progress
    )
    plain = Trained(module, module, torch.optim.AdamW(module.parameters(), lr=_RATE))
    fitted = Trained(twin, run, optimizer)
    for step in range(steps):
        tokens = _tokens(step, batch, length, vocab)
        # Who goes first changes from step to step: a machine that slows down hits both.
        for way in (plain, fitted) if step % 2 else (fitted, plain):
            torch.manual_seed(step)
            way.step_timed(tokens) if step % _RECORDED_EVERY else way.step_recorded(tokens)
        if progress is not None:
            progress("train", {"done": step + 1, "total": steps, "loss": fitted.losses[-1]})
    return DemoResult(
        plain=plain,
        fitted=fitted,
        budget_bytes=budget,
        plan=_plan_of(run),
        loss_difference=max(abs(a - b) for a, b in zip(plain.losses, fitted.losses, strict=True)),
        parameter_difference=parameter_difference(module, twin),
    )


def plain_peak(module: torch.nn.Module, tokens: torch.Tensor) -> int:
    """Measured peak bytes of the plain step once its optimizer has state; trains ``module``."""
    plain = Trained(module, module, torch.optim.AdamW(module.parameters(), lr=_RATE))
    plain.step(tokens)
    plain.step_recorded(tokens)
    return plain.peak_bytes


def parameter_difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """Largest absolute difference of any parameter of two modules of the same kind."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    with torch.no_grad():
        return max(float((a - b).abs().max()) for a, b in pairs)


def _plan_of(run: FittedModule) -> Plan:
    assert run.plan is not None  # example inputs were given
    return run.plan
