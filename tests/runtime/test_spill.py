"""Bytes in a file and back: any length, address and part, past the page cache or through it."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxmem.runtime import spill
from fxmem.runtime.spill import _CHUNK, ADDRESS, BLOCK, Buffer, SpillFile

SIZES = st.sampled_from(
    [1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, _CHUNK, _CHUNK + 700, 2 * _CHUNK + 1]
)


@pytest.fixture(params=["direct", "cached"], scope="module")
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SpillFile:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cached":
            patch.delattr(os, "O_DIRECT", raising=False)
        made = SpillFile(str(tmp_path_factory.mktemp("spill")))
    if request.param == "direct" and not made.direct:
        pytest.skip("the file system here has no O_DIRECT")
    assert made.direct == (request.param == "direct")
    return made


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The system moves only a part at a time; yields what it was asked for."""
    asked: list[int] = []

    def part(size: int) -> int:
        asked.append(size)
        return max(BLOCK, size // 3 // 512 * 512 + 512)

    def write(file: int, memory: memoryview, offset: int) -> int:
        return os.pwrite(file, memory[: part(len(memory))], offset)

    def read(file: int, memories: list[memoryview], offset: int) -> int:
        (memory,) = memories
        return os.preadv(file, [memory[: part(len(memory))]], offset)

    monkeypatch.setattr(spill, "pwrite", write)
    monkeypatch.setattr(spill, "preadv", read)
    yield asked


def memory_at(shift: int, size: int) -> memoryview:
    """``size`` bytes that begin ``shift`` bytes into a page."""
    return memoryview(mmap.mmap(-1, shift + size))[shift:]


def there_and_back(file: SpillFile, size: int, shifts: tuple[int, int], blocks: int) -> None:
    source, target = (memory_at(shift, size) for shift in shifts)
    source[:] = random.Random(size).randbytes(size)
    # Each thread has a buffer of its own.
    file.write(source, blocks * BLOCK, Buffer())
    file.read(target, blocks * BLOCK, Buffer())
    assert target == source


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=SIZES,
    shifts=st.tuples(*2 * [st.sampled_from([0, 64, ADDRESS, 3 * ADDRESS, 513])]),
    blocks=st.integers(0, 9),
)
def test_the_same_bytes(file: SpillFile, size: int, shifts: tuple[int, int], blocks: int) -> None:
    there_and_back(file, size, shifts, blocks)


@pytest.mark.parametrize("shift", [0, 64])
def test_in_parts(file: SpillFile, in_parts: list[int], shift: int) -> None:
    there_and_back(file, 2 * _CHUNK + 4711, (shift, shift), 1)
    assert len(in_parts) > 6


def test_neighbours_stay(file: SpillFile) -> None:
    """A padded last block ends within the room of its own value."""
    for number in range(3):
        source = memory_at(0, BLOCK + 9)
        source[:] = bytes([number]) * len(source)
        file.write(source, 2 * number * BLOCK, Buffer())
    for number in range(3):
        target = memory_at(0, BLOCK + 9)
        file.read(target, 2 * number * BLOCK, Buffer())
        assert set(target) == {number}


def test_aligned_memory_needs_no_buffer(file: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def write(file: int, memory: memoryview, offset: int) -> int:
        asked.append(len(memory))
        return os.pwrite(file, memory, offset)

    monkeypatch.setattr(spill, "pwrite", write)
    file.write(memory_at(ADDRESS, 3 * _CHUNK), 0, Buffer())
    assert asked == [3 * _CHUNK]


def test_what_ends_too_soon(file: SpillFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "preadv", lambda *_: 100 if file.direct else 0)
    with pytest.raises(OSError, match="too soon"):
        file.read(memory_at(0, BLOCK), 0, Buffer())


def test_where_the_file_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written in the usual way then."""

    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "pwrite", refuse)
    made = SpillFile(str(tmp_path))
    monkeypatch.undo()
    assert not made.direct
    there_and_back(made, BLOCK + 1, (1, 2), 0)
