"""Runs graphviz: the system's ``dot`` if there is one, else the one that a package carries."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from fxmem.errors import FxmemError

_PACKAGE = "graphviz-pure"  # a port of graphviz 16; its layouts and SVG are those of the original
_SECONDS = 120.0


def programs() -> tuple[str, ...]:
    """Programs that speak graphviz's command line, best first."""
    found = [shutil.which("dot"), _carried(), shutil.which(_PACKAGE)]
    return tuple(dict.fromkeys(p for p in found if p))


def _carried() -> str | None:
    """Where pip put the package's program; it need not be on the PATH."""
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    places = [Path(str(f.locate())) for f in files if f.stem == _PACKAGE and "bin" in str(f.parent)]
    places += [Path(str(f.locate())) for f in files if f.name == f"{_PACKAGE}.exe"]
    return next((str(p.resolve()) for p in places if p.exists()), None)


def draw(source: str, kind: str, *options: str) -> bytes:
    """Run graphviz on ``source``.

    Parameters
    ----------
    source : str
        One or more graphs in graphviz's language.
    kind : str
        A format of graphviz's, such as ``"svg"`` or ``"plain"``.
    *options : str
        Further arguments.

    Raises
    ------
    FxmemError
        There is no program, or none that is here can write the format.
    """
    found = programs()
    if not found:
        raise FxmemError(
            f"drawing needs graphviz: pip install {_PACKAGE}, or install the system's graphviz. "
            "A path that ends in .dot is written without."
        )
    told = ""
    for program in found:
        try:
            done = subprocess.run(
                [program, f"-T{kind}", *options],
                input=source.encode(),
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            told = f"{program} took more than {_SECONDS:.0f} s"
            continue
        except OSError as error:
            told = f"{program} does not run: {error}"
            continue
        if done.returncode == 0 and done.stdout:
            return done.stdout
        told = done.stderr.decode(errors="replace").strip()
    raise FxmemError(f"graphviz could not write {kind}: {told[:300]}")
