"""`optimize(offload=...)`: below what recomputation reaches, the same numbers, no room kept."""

from __future__ import annotations

import copy
import errno
import gc
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxmem
from fxmem.errors import TransferError
from fxmem.plan import Plan
from fxmem.runtime import spill
from fxmem.runtime.transfer import held_bytes


class Layers(nn.Module):
    """Each layer's output is needed by its own gradient, and is as large as any."""

    def __init__(self, count: int = 4, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(nn.functional.gelu(layer(x)))
        return x.square().mean()


X = torch.randn(1024, 128)


def made() -> Layers:
    torch.manual_seed(0)
    return Layers()


@pytest.fixture(scope="module")
def least() -> int:
    """The least bytes that recomputation finds."""
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        fxmem.optimize(made(), 1, (X,), time_limit=1)
    assert caught.value.minimum_bytes is not None
    return caught.value.minimum_bytes


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tier for all: measured once, and the schedule found once."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture
def fitted(least: int, disk: Path) -> fxmem.FittedModule:
    """Within what recomputation cannot reach."""
    budget = least - 300_000
    return fxmem.optimize(made(), budget, (X,), offload=disk, time_limit=3)


def gradients(module: nn.Module, seed: int = 1, calls: int = 1) -> list[Tensor]:
    torch.manual_seed(seed)
    losses = [module(X) for _ in range(calls)]
    for loss in losses:
        loss.backward()
    found = [p.grad for p in module.parameters()]
    for p in module.parameters():
        p.grad = None
    return found


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def free_of_budget() -> fxmem.FittedModule:
    return fxmem.optimize(made(), None, (X,))


def test_fits_below_recomputation_with_the_same_numbers(fitted, disk) -> None:
    plan = fitted.plan
    assert plan.transfers and plan.peak_bytes <= plan.budget_bytes
    for seed in (1, 2):
        assert same(gradients(fitted, seed), gradients(free_of_budget(), seed))
    assert fxmem.measure(fitted, X).peak_bytes == plan.peak_bytes
    gc.collect()
    assert held_bytes(str(disk)) == 0
    assert list(disk.iterdir()) == []


def test_the_plan_tells_of_each_transfer(fitted, disk, tmp_path) -> None:
    plan = fitted.plan
    moved = {n for n, d in plan.decisions.items() if isinstance(d, fxmem.Offload)}
    assert moved == {t.value for t in plan.transfers}
    for t in plan.transfers:
        assert t.tier == str(disk) and t.bytes == plan.value_bytes[t.value]
        assert 0 <= t.start < t.end <= plan.seconds + 1e-9 and t.asked <= t.done
        assert t.hides_behind(plan) or t.stall + t.toll > 0
    assert f"moved       {len(moved)} values" in plan.summary()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_without_the_arena(least, disk) -> None:
    budget = least - 300_000
    fitted = fxmem.optimize(made(), budget, (X,), offload=disk, time_limit=3, pool=False)
    assert same(gradients(fitted), gradients(free_of_budget()))
    assert fxmem.measure(fitted, X).peak_bytes == fitted.plan.peak_bytes <= budget


def test_two_forwards_before_a_backward_and_a_dropped_graph(fitted, disk) -> None:
    assert same(gradients(fitted, calls=2), gradients(free_of_budget(), calls=2))
    loss = fitted(X)
    assert held_bytes(str(disk)) > 0
    del loss
    gc.collect()
    assert held_bytes(str(disk)) == 0


def test_a_graph_kept_for_a_second_backward(fitted) -> None:
    loss = fitted(X)
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in fitted.parameters()]
    loss.backward()
    assert same([p.grad for p in fitted.parameters()], [2 * g for g in first])


def test_a_full_disk_at_every_write(fitted, disk, monkeypatch) -> None:
    wanted = gradients(fitted)
    writes = sum(t.direction == "out" for t in fitted.plan.transfers)
    for n in range(writes):
        left = [n]

        def write(file, memory, offset, left=left) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.pwrite(file, memory, offset)

        with monkeypatch.context() as patch:
            patch.setattr(spill, "pwrite", write)
            with pytest.raises(TransferError, match="No space left"):
                gradients(fitted)
        for p in fitted.parameters():
            p.grad = None
        gc.collect()
        assert held_bytes(str(disk)) == 0
        assert same(gradients(fitted), wanted)


def test_a_read_that_fails_in_backward(fitted, monkeypatch) -> None:
    wanted = gradients(fitted)

    def read(*_args) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    loss = fitted(X)
    with monkeypatch.context() as patch:
        patch.setattr(spill, "preadv", read)
        with pytest.raises(TransferError, match="read back"):
            loss.backward()
    for p in fitted.parameters():
        p.grad = None
    assert same(gradients(fitted), wanted)


def test_a_budget_that_nothing_meets(least, disk) -> None:
    with pytest.raises(fxmem.InfeasibleBudget) as caught:
        fxmem.optimize(made(), 1, (X,), offload=disk, time_limit=3)
    minimum = caught.value.minimum_bytes
    assert minimum < least
    fitted = fxmem.optimize(made(), minimum, (X,), offload=disk, time_limit=3)
    assert fitted.plan.peak_bytes <= minimum


def test_what_cannot_be(tmp_path) -> None:
    for offload, told in (("host", "give a directory"), (tmp_path / "no", "is no directory")):
        with pytest.raises(fxmem.FxmemError, match=told):
            fxmem.optimize(made(), 0.5, (X,), offload=offload)
    with pytest.raises(fxmem.FxmemError, match="backend='eager'"):
        fxmem.optimize(made(), 0.5, (X,), offload=tmp_path, backend="inductor")


def test_a_copy_of_the_module(fitted) -> None:
    twin = copy.deepcopy(fitted)
    assert same(gradients(twin), gradients(free_of_budget()))
