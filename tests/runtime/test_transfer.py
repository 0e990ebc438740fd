"""Storages moved to a file and back: the same bytes, freed room, and faults that are told."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys

import pytest
import torch

from fxmem.errors import TransferError
from fxmem.runtime import spill, transfer
from fxmem.runtime.transfer import copy_in, copy_out, held_bytes, wait_in, wait_out


def out(value: torch.Tensor, directory) -> torch.Tensor:
    return wait_out(copy_out(value, str(directory), "v"), value)


def back(ticket: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    made = copy_in(ticket, tuple(like.shape), like.stride(), like.dtype)
    return wait_in(ticket, made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_the_same_bytes_come_back(tmp_path, dtype) -> None:
    value = torch.randint(0, 2, (31, 17)).to(dtype).t()
    ticket = out(value, tmp_path)
    for _ in range(2):  # a second backward reads it again
        found = back(ticket, value)
        assert torch.equal(found, value) and found.stride() == value.stride()
    assert list(tmp_path.iterdir()) == []


def test_room_is_free_when_the_ticket_is(tmp_path) -> None:
    value = torch.randn(1000)
    ticket = out(value, tmp_path)
    view = ticket.detach()
    del ticket
    assert held_bytes(str(tmp_path)) == 4000  # another tensor shares the ticket's memory
    del view
    gc.collect()
    assert held_bytes(str(tmp_path)) == 0
    second = out(value * 2, tmp_path)
    assert transfer.tier_at(str(tmp_path)).end == 4096  # the same place again
    assert torch.equal(back(second, value), value * 2)


def test_many_at_once_in_the_order_asked(tmp_path) -> None:
    values = [torch.randn(n + 1, 64) for n in range(40)]
    tickets = [copy_out(v, str(tmp_path), "v") for v in values]
    for ticket, value in zip(tickets, values, strict=True):
        wait_out(ticket, value)
    made = [
        copy_in(t, tuple(v.shape), v.stride(), v.dtype)
        for t, v in zip(tickets, values, strict=True)
    ]
    for ticket, found, value in zip(tickets, made, values, strict=True):
        assert torch.equal(wait_in(ticket, found), value)


def test_a_full_disk_is_told_and_the_next_value_moves(tmp_path, monkeypatch) -> None:
    def full(*_args) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    value = torch.randn(100)
    with monkeypatch.context() as patch:
        patch.setattr(spill, "pwrite", full)
        with pytest.raises(TransferError, match=r"v \(400 bytes\).*written.*No space left"):
            out(value, tmp_path)
    gc.collect()
    assert held_bytes(str(tmp_path)) == 0
    assert torch.equal(back(out(value, tmp_path), value), value)


def test_a_file_cut_short_is_told(tmp_path) -> None:
    value = torch.randn(100)
    ticket = out(value, tmp_path)
    transfer.tier_at(str(tmp_path)).file.file.truncate(200)
    with pytest.raises(TransferError, match=r"read back.*ends too soon"):
        back(ticket, value)


def test_changed_bytes_are_found_where_checksums_are_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(transfer.CHECK, "1")
    value = torch.randn(100)
    ticket = out(value, tmp_path)
    assert torch.equal(back(ticket, value), value)
    changed = memoryview(bytearray(value.numpy().tobytes()))
    changed[7] ^= 1
    transfer.tier_at(str(tmp_path)).file.write(changed, 0, spill.Buffer())
    with pytest.raises(TransferError, match="other bytes"):
        back(ticket, value)


def test_no_directory(tmp_path) -> None:
    with pytest.raises(TransferError, match="no file can be made"):
        out(torch.ones(3), tmp_path / "not there")


def test_nothing_is_left_after_a_crash(tmp_path) -> None:
    code = (
        "import os, torch; from fxmem.runtime.transfer import *; v = torch.ones(9)\n"
        f"wait_out(copy_out(v, {str(tmp_path)!r}, 'v'), v); os.abort()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode < 0 and list(tmp_path.iterdir()) == []
