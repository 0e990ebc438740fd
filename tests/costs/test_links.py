"""What a tier takes, measured on this machine, kept on disk."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fxmem.costs import links
from fxmem.costs.links import measure_tier
from fxmem.errors import TransferError
from fxmem.files.store import cache_directory
from fxmem.runtime import spill
from fxmem.runtime.transfer import held_bytes


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(links, "_SECONDS", 0.01)
    links._known.cache_clear()


def test_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = measure_tier(str(tmp_path))
    assert tier.write_bandwidth > 1 and tier.read_bandwidth > 1
    assert min(tier.write_toll, tier.read_toll, tier.write_latency, tier.read_latency) >= 0
    assert held_bytes(str(tmp_path)) == 0
    links._known.cache_clear()
    monkeypatch.setattr(links, "_measure", lambda _: pytest.fail("measured again"))
    again = measure_tier(str(tmp_path))
    assert again.write_toll == tier.write_toll and again.read_bandwidth == tier.read_bandwidth


def test_a_row_of_another_form_is_measured_anew(tmp_path: Path) -> None:
    measure_tier(str(tmp_path))
    file = cache_directory() / "links.json"
    rows = json.loads(file.read_text())
    file.write_text(json.dumps({key: row[:4] for key, row in rows.items()}))
    links._known.cache_clear()
    measure_tier(str(tmp_path))
    assert all(len(row) == 6 for row in json.loads(file.read_text()).values())


def test_a_link_that_takes_the_processor_has_a_toll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy computes for a while on all threads, as a copy by the system would."""
    monkeypatch.setattr(links, "_SECONDS", 0.1)
    a = torch.ones(512, 512)

    def write(file: int, memory: memoryview, offset: int) -> int:
        end = time.perf_counter() + 0.004
        while time.perf_counter() < end:
            torch.mm(a, a)
        return os.pwrite(file, memory, offset)

    monkeypatch.setattr(spill, "pwrite", write)
    tier = measure_tier(str(tmp_path), cache=False)
    assert tier.write_bandwidth < 1_100_000_000
    # Half of the machine or so for a millisecond a megabyte.
    assert tier.write_toll > 50_000_000


def test_a_link_slower_than_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copy outlasts it: its own time counts."""

    def write(file: int, memory: memoryview, offset: int) -> int:
        time.sleep(0.05)
        return os.pwrite(file, memory, offset)

    monkeypatch.setattr(spill, "pwrite", write)
    assert measure_tier(str(tmp_path), cache=False).write_bandwidth < links._LARGE / 0.05


def test_in_the_midst_of_a_trace(tmp_path: Path) -> None:
    with FakeTensorMode():
        assert measure_tier(str(tmp_path), cache=False).write_bandwidth > 1


def test_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spill, "pwrite", full)
    with pytest.raises(TransferError, match=r"a trial.*No space left"):
        measure_tier(str(tmp_path), cache=False)
    assert held_bytes(str(tmp_path)) == 0
    with pytest.raises(TransferError, match="no file can be made"):
        measure_tier(str(tmp_path / "none"), cache=False)
