"""An untested torch is told of, and used all the same."""

from __future__ import annotations

import warnings

import pytest
import torch

from fxmem.versions import warn_if_untested


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.1+cu130", torch.__version__])
def test_tested(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(version)


@pytest.mark.parametrize("version", ["2.10.1", "2.15.0", "3.0", "2.15.0a0+git1234", "unknown"])
def test_untested(version: str) -> None:
    with pytest.warns(RuntimeWarning, match="is tested with torch 2.11 to 2.14") as told:
        warn_if_untested(version)
    assert len(told) == 1 and version in str(told[0].message)
