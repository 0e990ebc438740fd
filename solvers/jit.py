"""How the numba kernels are compiled: few cached entries, everything else inside them.

Loading a cached kernel takes about 10 ms, so only what Python calls is an entry. A `helper`
has no cache of its own: it is compiled into the entries that call it, which hold its code.

Numba looks at the entry's own file alone to see whether its cache is stale. An edit of a helper
in another file would go unseen, so a hash of all kernel sources stands in the entry's qualified
name, and with it in the names of its cache files. So does the package's name: types of
arguments are stored by module, and a copy imported by another name must not read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])

# Numba compiles a helper once more for each plain literal that it is given; not for these.
ZERO, ONE, MINUS_ONE = (cast(int, np.int64(value)) for value in (0, 1, -1))
FALSE = cast(bool, np.bool_(False))
# A position beyond every sequence, an offset above every other.
NEVER = cast(int, np.int64(1 << 40))
INFINITE = cast(int, np.int64(1 << 61))

# Wrappers that Python and C could call take a third of the time to compile.
_INNER: dict[str, Any] = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Private to numba (read in 0.68): no reference counts, which stand in the way of optimisation
# and took five sixths of the search's time.
_BARE: dict[str, Any] = {"_nrt": False, **_INNER}


def stamp(package: str | None, sources: Iterable[Path]) -> str:
    """A hash of a package's name and its kernels' ``sources``, this file included."""
    digest = hashlib.sha256((package or "").encode())
    for path in [Path(__file__), *sorted(sources)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def entry_of(stamp: str) -> Callable[[Kernel], Kernel]:
    """A decorator: compile a function that Python calls; keep the result on disk."""

    def entry(function: Kernel) -> Kernel:
        function.__qualname__ = f"{function.__qualname__}_{stamp}"
        return cast(Kernel, njit(cache=True, nogil=True)(function))

    return entry


def helper(function: Kernel) -> Kernel:
    """Compile ``function`` into the entries that call it; it allocates nothing."""
    return cast(Kernel, njit(**_BARE)(function))


def allocating(function: Kernel) -> Kernel:
    """A `helper` that makes arrays."""
    return cast(Kernel, njit(**_INNER)(function))
