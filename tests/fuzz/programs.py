"""Random modules, as the source text of a module: a failure prints what to paste into a test.

A rule draws one or a few lines that use the values at hand, whose shapes it knows. What eager
itself refuses (an in-place operator on what its backward needs) is left to the caller to skip.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from tests.cases import Case
from tests.fuzz.rules import RULES
from tests.fuzz.scope import Draw, Scope

_FILES = count()


@dataclass(frozen=True)
class Program:
    """The source of one module, its inputs, and the share of its peak that it may use.

    Attributes
    ----------
    setup, body : tuple of str
        Lines of ``__init__`` and of ``forward``.
    returns : str
        What forward returns.
    inputs : tuple of (str, str)
        Name and expression of each argument.
    dtype : str
        Of parameters and floating-point inputs.
    autocast : bool
        Does forward run under autocast to bfloat16?
    share : float
        The budget, from the least in reach (0) to the whole peak (1).
    """

    setup: tuple[str, ...]
    body: tuple[str, ...]
    returns: str
    inputs: tuple[tuple[str, str], ...]
    dtype: str = "torch.float32"
    autocast: bool = False
    share: float = 0.5

    @property
    def source(self) -> str:
        """The module's class and its arguments."""
        body = [*self.body, f"return {self.returns}"]
        if self.autocast:
            indented = [f"    {line}" for line in body]
            body = ['with torch.autocast("cpu", torch.bfloat16):', *indented]
        names = ", ".join(name for name, _ in self.inputs)
        return "\n".join(
            [
                "class Fuzzed(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for line in self.setup),
                "",
                f"    def forward(self, {names}):",
                *(f"        {line}" for line in body),
                "",
                f"args = ({', '.join(text for _, text in self.inputs)},)",
            ]
        )

    def __repr__(self) -> str:
        rest = f"dtype {self.dtype}, share of the budget's range {self.share}"
        return f"\ntorch.set_default_dtype({self.dtype})\n{self.source}\n# {rest}\n"

    def case(self) -> Case:
        """The module and its arguments, with the same numbers each time."""
        file = f"<fuzzed {next(_FILES)}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "__name__": "fuzzed"}
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self.dtype.removeprefix("torch.")))
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                exec(compile(self.source, file, "exec"), names)
                return Case(names["Fuzzed"](), names["args"])
        finally:
            torch.set_default_dtype(before)


SHAPES = ((16, 32), (4, 8, 16), (2, 4, 8, 8), (64, 16), (2, 16, 16))


@st.composite
def programs(draw: Draw, most: int = 10) -> Program:
    """Programs of up to ``most`` rules."""
    scope = Scope(draw)
    shape = scope.choose(SHAPES)
    takes_gradient = scope.choose((False, True))
    asked = ".requires_grad_()" if takes_gradient else ""
    inputs = [("x", f"torch.randn{shape}{asked}")]
    scope.floats["x"] = shape
    for rule in draw(st.lists(st.sampled_from(RULES), min_size=1, max_size=most)):
        rule(scope)
    if scope.choose((False, True)):
        inputs.append(("y", f"torch.randn{shape}"))
        scope.line(scope.choose(("y.mul_(0.5)", "y = y + 1", "y.add_(x.detach())")))
        scope.floats["y"] = shape
        scope.unread.add("y")
    weight = scope.held("parameter", "torch.ones(())")
    ends = [n for n in scope.floats if n in scope.unread] or ["x"]
    mean = " + ".join(f"{n}.square().mean()" for n in ends)
    scope.line(f"loss = {weight} * ({mean})")
    extras = [*scope.floats, *scope.integers, *scope.booleans, "loss.detach()"]
    returned = draw(st.lists(st.sampled_from(extras[::-1]), max_size=2))
    return Program(
        tuple(scope.setup),
        tuple(scope.body),
        ", ".join(["loss", *returned]),
        tuple(inputs),
        scope.choose(("torch.float32", "torch.bfloat16", "torch.float64")),
        scope.choose((False, False, True)),
        draw(st.integers(0, 8)) / 8,
    )
