"""How the numba kernels are compiled: few cached entries, everything else inside them.

Loading a cached kernel takes about 10 ms, so only what Python calls is an `entry`. A `helper`
has no cache of its own: it is compiled into the entries that call it, which hold its code.

Numba looks at the entry's own file alone to see whether its cache is stale. An edit of a helper
in another file would go unseen, so a hash of all kernel sources stands in the entry's qualified
name, and with it in the names of its cache files. So does the package's name: types of
arguments are stored by module, and a copy imported by another name must not read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])

# Numba compiles a helper once more for each plain literal that it is given; not for these.
ZERO, ONE, MINUS_ONE = (cast(int, np.int64(value)) for value in (0, 1, -1))
FALSE = cast(bool, np.bool_(False))
# A position beyond every sequence.
NEVER = cast(int, np.int64(1 << 40))

# Wrappers that Python and C could call take a third of the time to compile.
_INNER: dict[str, Any] = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Private to numba (read in 0.68): no reference counts, which stand in the way of optimisation
# and took five sixths of the search's time.
_BARE: dict[str, Any] = {"_nrt": False, **_INNER}


def _stamp() -> str:
    digest = hashlib.sha256((__package__ or "").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_bytes()
        # `arrays` holds no kernel, but the records that all of them read.
        if path.stem in ("jit", "arrays") or b"from .jit import" in text:
            digest.update(text)
    return digest.hexdigest()[:12]


STAMP = _stamp()


def entry(function: Kernel) -> Kernel:
    """Compile ``function``, which Python calls; keep the result on disk."""
    function.__qualname__ = f"{function.__qualname__}_{STAMP}"
    return cast(Kernel, njit(cache=True, nogil=True)(function))


def helper(function: Kernel) -> Kernel:
    """Compile ``function`` into the entries that call it; it allocates nothing."""
    return cast(Kernel, njit(**_BARE)(function))


def allocating(function: Kernel) -> Kernel:
    """A `helper` that makes arrays."""
    return cast(Kernel, njit(**_INNER)(function))
