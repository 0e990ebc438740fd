"""What is held throughout a step; each storage once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxmem.errors import FxmemError
from fxmem.residents import OPTIMIZERS, count_residents, optimizer_bytes
from tests.modules import Transformer

KIB = 1024


def module() -> nn.Module:
    net = nn.Sequential(nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16))
    return net.to(torch.float32)


def test_kinds_apart() -> None:
    net = module()
    found = count_residents(net, [torch.zeros(8, 16), {"y": torch.zeros(4)}, 3, None], "sgd")
    assert found.parameters == 16 * 16 * 4 + 2 * 16 * 4
    assert found.buffers == 2 * 16 * 4 + 8
    assert found.inputs == 8 * 16 * 4 + 4 * 4
    assert (found.gradients, found.optimizer) == (0, 0)
    assert found.total == found.parameters + found.buffers + found.inputs


def test_a_storage_counts_once() -> None:
    net = Transformer()
    untied = sum(p.numel() * 4 for p in net.parameters())
    assert net.head.weight is net.embed.weight
    whole = torch.zeros(100)
    found = count_residents(net, [whole, whole[:10], whole.view(10, 10), net.embed.weight])
    assert found.parameters == untied
    assert found.inputs == 400


def test_a_small_view_holds_its_whole_storage() -> None:
    assert count_residents(nn.Identity(), [torch.zeros(1000)[:1]]).total == 4000


def test_gradients_that_exist_are_held() -> None:
    net = module()
    net(torch.randn(4, 16)).sum().backward()
    found = count_residents(net)
    assert found.gradients == found.parameters
    net[0].weight.requires_grad_(False)
    net.zero_grad()
    assert count_residents(net).gradients == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_by_name_is_what_a_step_makes(name: str) -> None:
    net = module()
    optimizer = OPTIMIZERS[name](net.parameters())
    expected = optimizer_bytes(net, name)
    by_itself = optimizer_bytes(net, optimizer)
    assert optimizer.state == {} or name == "adagrad"  # adagrad makes its state at once
    net(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    after = sum(
        v.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for v in state.values()
        if torch.is_tensor(v)
    )
    assert expected == by_itself == after == optimizer_bytes(net, optimizer)


def test_counting_leaves_the_optimizer_alone() -> None:
    net = module()
    before = [p.clone() for p in net.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": [net[0].weight], "lr": 1.0}, {"params": net[1].parameters()}], amsgrad=True
    )
    # Three moments and a step count for each parameter.
    assert optimizer_bytes(net, optimizer) == 3 * sum(p.numel() * 4 for p in before) + 3 * 4
    assert all(map(torch.equal, net.parameters(), before))
    assert optimizer.state == {}
    assert optimizer.param_groups[0]["params"][0] is net[0].weight
    assert all(p.grad is None for p in net.parameters())


def test_frozen_parameters_have_no_state() -> None:
    net = module()
    net[0].weight.requires_grad_(False)
    assert optimizer_bytes(net, "adamw") == 2 * 2 * 16 * 4 + 2 * 4
    net.requires_grad_(False)
    assert optimizer_bytes(net, "adamw") == 0


def test_names() -> None:
    assert optimizer_bytes(module(), None) == 0
    assert optimizer_bytes(module(), "AdamW") == optimizer_bytes(module(), "adamw")
    with pytest.raises(
        FxmemError, match=r"optimizer 'lion' is not known\. Give one of adam, adamw"
    ):
        optimizer_bytes(module(), "lion")
