"""Loading or compiling kernels before they are needed."""

from __future__ import annotations

import threading
import time as clock

from .arrays import Buffers
from .explore import explore
from .greedy import greedy
from .problem import PackingProblem
from .state import KEYS, empty_state

_lock = threading.Lock()
_seconds: dict[str, float] = {}


def warm_up() -> None:
    """Load every kernel from numba's cache on disk, or compile it.

    Later calls return at once; a call while another thread is at it waits for that one. `pack`
    does it as needed, outside its time limit.
    """
    warm_greedy()
    warm_search()


def warm_greedy() -> float:
    """Load the kernels of the plain orders; the seconds that it took now."""
    with _lock:
        if "greedy" in _seconds:
            return 0.0
        began = clock.monotonic()
        greedy(_tiny())
        _seconds["greedy"] = clock.monotonic() - began
        return _seconds["greedy"]


def warm_search() -> float:
    """Load the kernel of the search; the seconds that it took now."""
    with _lock:
        if "search" in _seconds:
            return 0.0
        began = clock.monotonic()
        explore(empty_state(_tiny(), 2, KEYS), 10)
        _seconds["search"] = clock.monotonic() - began
        return _seconds["search"]


def _tiny() -> Buffers:
    buffers = Buffers.of(PackingProblem([0, 1], [2, 3], [1, 1]))
    assert buffers is not None
    return buffers
