"""A random program as it grows, and what its next line may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Shape = tuple[int, ...]
Draw = Callable[..., Any]


@dataclass
class Scope:
    """The program so far, and the values that its next line may use."""

    draw: Draw
    setup: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    floats: dict[str, Shape] = field(default_factory=dict)
    integers: dict[str, Shape] = field(default_factory=dict)
    booleans: dict[str, Shape] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    layers: dict[str, str] = field(default_factory=dict)
    fresh: int = 0

    def choose(self, options: Any) -> Any:
        """One of ``options``; the first is the simplest."""
        return self.draw(st.sampled_from(list(options)))

    def value(self, rank: int | None = None) -> tuple[str, Shape] | None:
        """A floating-point value of the program, the newest first."""
        found = [n for n, s in self.floats.items() if rank is None or len(s) == rank]
        if not found:
            return None
        name = self.choose(found[::-1])
        self.unread.discard(name)
        return name, self.floats[name]

    def line(self, text: str) -> None:
        """Add a line to forward."""
        self.body.append(text)

    def make(self, expression: str, shape: Shape, kind: str = "floats") -> str:
        """Add a line that gives a new name to ``expression``."""
        self.fresh += 1
        name = f"v{self.fresh}"
        self.line(f"{name} = {expression}")
        getattr(self, kind)[name] = shape
        if kind == "floats":
            self.unread.add(name)
        return name

    def layer(self, expression: str) -> str:
        """A submodule: a new one, or one like it that is there already."""
        likes = [name for name, made in self.layers.items() if made == expression]
        if likes and self.draw(st.booleans()):
            return f"self.{likes[0]}"
        name = f"layer{len(self.layers)}"
        self.layers[name] = expression
        self.setup.append(f"self.{name} = {expression}")
        return f"self.{name}"

    def held(self, kind: str, expression: str) -> str:
        """A parameter or a buffer of the module."""
        name = f"{kind}{len(self.setup)}"
        if kind == "parameter":
            self.setup.append(f"self.{name} = nn.Parameter({expression})")
        else:
            self.setup.append(f'self.register_buffer("{name}", {expression})')
        return f"self.{name}"
