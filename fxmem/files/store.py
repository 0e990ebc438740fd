"""JSON files: what others may have damaged on reading, and never half a file on writing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from pathlib import Path
from typing import Any


class BadFile(ValueError):
    """A file that is no JSON, or holds what no file of ours does."""


def cache_directory() -> Path:
    """Where costs and plans are kept: ``$FXMEM_CACHE_DIR``, else the user's cache folder."""
    if chosen := os.environ.get("FXMEM_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fxmem"


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises
    ------
    OSError
        The file cannot be read.
    BadFile
        It is no JSON, nested beyond Python's stack, or holds a number that is not finite.
    """
    try:
        return json.loads(path.read_text(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: {error}") from error


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Replace the file whole, or leave it as it was.

    Raises
    ------
    OSError
        The folder or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the file, and no other process's or thread's.
    beside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        beside.write_text(json.dumps(value, indent=indent))
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of ours")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is out of range")
    return number
