"""Versions of torch that the tests pass with."""

from __future__ import annotations

import re
import warnings

#: First and last minor version, both included: `make test-torch TORCH=2.14.1` and the like.
TESTED = ((2, 11), (2, 14))


def warn_if_untested(version: str) -> None:
    """Say once that nobody has run the tests with this version of torch; then go on.

    Parameters
    ----------
    version : str
        Such as ``"2.13.0+cpu"``.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not TESTED[0] <= (int(found[1]), int(found[2])) <= TESTED[1]:
        first, last = (".".join(map(str, v)) for v in TESTED)
        warnings.warn(
            f"fxmem is tested with torch {first} to {last}, and this is {version}. It goes on; "
            "each plan is still proved by a run before it is used.",
            RuntimeWarning,
            stacklevel=3,
        )
