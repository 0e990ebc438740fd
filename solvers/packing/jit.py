"""The decorators and constants of this package's kernels; see `fxmem.solvers.jit`."""

from __future__ import annotations

from pathlib import Path

from ..jit import FALSE, INFINITE, MINUS_ONE, ONE, ZERO, allocating, entry_of, helper, stamp

__all__ = ["FALSE", "INFINITE", "MINUS_ONE", "ONE", "ZERO", "allocating", "entry", "helper"]

# `arrays` holds no kernel, but the records that all of them read.
entry = entry_of(
    stamp(
        __package__,
        (
            path
            for path in Path(__file__).parent.glob("*.py")
            if path.stem in ("jit", "arrays") or b"from .jit import" in path.read_bytes()
        ),
    )
)
