"""A traced step as a chain to be cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxmem
import fxmem.planning
from fxmem.costs import Cost
from fxmem.lower import lower
from fxmem.solvers.partition import Device, check, partition
from fxmem.solvers.remat import replay
from fxmem.stages.chain import stage_chain
from fxmem.trace import StepTrace, trace_joint
from tests.cases import CASES, make

ROOMY = Device(10**12)


def trace_of(module: nn.Module, args: tuple, kwargs: dict, monkeypatch) -> StepTrace:
    found: list[StepTrace] = []

    def keep(joint, forward_outputs):
        found.append(trace_joint(joint, forward_outputs))
        return found[-1]

    monkeypatch.setattr(fxmem.planning, "trace_joint", keep)
    fxmem.optimize(module, None, pool=False)(*args, **kwargs)
    return found[-1]


def costs_of(trace: StepTrace) -> dict:
    """An operator takes a second for each kilobyte of its results."""
    size = trace.storages.size
    return {
        n: Cost(1 + sum(size[s] for s in trace.storages.made_at(n)) / 1024, 64)
        for n in trace.operators
    }


class Skip(nn.Module):
    """A value that is read again three blocks later, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        first = x = self.embed(tokens)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return F.linear(x * first, self.embed.weight).square().mean()


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost(name: str, monkeypatch) -> None:
    case = make(name)
    trace = trace_of(case.module, case.args, dict(case.kwargs), monkeypatch)
    costs = costs_of(trace)
    lowered = lower(trace, costs, 0, reuse=False)
    least = max(replay(lowered.problem, range(lowered.problem.count)))
    outside = lowered.problem.workspace[lowered.problem.turn]  # the caller's own loss
    for pieces in (None, 5):
        chain = stage_chain(trace, costs, [ROOMY], pieces=pieces)
        run = [n for groups in (chain.forward, chain.backward) for group in groups for n in group]
        assert sorted(n.name for n in run) == sorted(n.name for n in trace.operators)
        total = sum(item.forward + item.backward for item in chain.problem.items)
        assert total == pytest.approx(sum(c.seconds for c in costs.values()))
        # One stage, one microbatch, nothing recomputed: no less than what the step really holds.
        found = partition(chain.problem, None, "gpipe", 1)
        assert found.status == "optimal" and not any(found.stage_plans[0].options)
        assert found.stage_plans[0].peak >= least - outside


def test_no_operator_reads_what_is_made_in_a_later_stage(monkeypatch) -> None:
    trace = trace_of(Skip(), (torch.arange(8),), {}, monkeypatch)
    chain = stage_chain(trace, costs_of(trace), [ROOMY], pieces=None)
    place = {n: i for i, group in enumerate(chain.forward) for n in group}
    back = {n: i for i, group in enumerate(chain.backward) for n in group}
    for node, i in place.items():
        assert all(place.get(m, 0) <= i for m in _makers(trace, node))
    for node, i in back.items():
        assert all(back[m] >= i for m in _makers(trace, node) if m in back)
    # The gradient of each block's weight is made where the block is, not at the chain's start.
    products = [n for n in back if n.target is torch.ops.aten.mm.default]
    assert len({back[n] for n in products}) >= 4


def _makers(trace: StepTrace, node) -> list:
    return [trace.storages.made_by[s] for s in trace.storages.read_by(node)]


def test_what_only_the_backward_part_reads_is_computed_there(monkeypatch) -> None:
    """``x ** 3`` squares ``x`` again in its derivative: the square crosses no cut."""

    class Cubes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = torch.tanh(torch.pow(block(x), 3.0))
            return x.square().mean()

    trace = trace_of(Cubes(), (torch.randn(8, 32),), {}, monkeypatch)
    problem = stage_chain(trace, costs_of(trace), [ROOMY], pieces=None).problem
    assert max(problem.crossing) <= 2 * 8 * 32 * 4


def test_a_skip_crosses_every_cut_on_its_way_and_ties_are_held_by_both(monkeypatch) -> None:
    trace = trace_of(Skip(), (torch.arange(8),), {}, monkeypatch)
    problem = stage_chain(trace, costs_of(trace), [ROOMY] * 2, 2.0, pieces=None).problem
    value = 8 * 32 * 4  # bytes of one activation
    middle = problem.crossing[len(problem.crossing) // 2]
    assert middle >= 2 * value
    (tie,) = (t for t in problem.ties if t.bytes == 16 * 32 * 4)
    assert tie.items[0] == 0 and tie.items[-1] >= len(problem.items) - 6
    assert tie.resident == 16 * 32 * 4 * (1 + 1 + 2)
    found = partition(problem, None, "1f1b", 4)
    assert found.status == "optimal"
    for stage, ends in zip(found.stage_plans, (0, -1), strict=True):
        assert stage.start <= tie.items[ends] < stage.stop


class Uneven(nn.Module):
    """Blocks that grow towards the end, as a convolutional net's shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = (64, 64, 64, 64, 128, 128, 256, 512)
        self.up = nn.ModuleList(
            nn.Linear(a, b) for a, b in zip((64, *self.widths), self.widths, strict=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.up:
            x = F.gelu(layer(x))
        return x.square().mean()


def test_slowest_stage_against_an_even_number_of_blocks(monkeypatch) -> None:
    """What a split at equal numbers of blocks would give, by the same costs: 15 % worse."""
    trace = trace_of(Uneven(), (torch.randn(64, 64),), {}, monkeypatch)
    problem = stage_chain(trace, costs_of(trace), [ROOMY] * 2, pieces=None).problem
    found = partition(problem, None, "1f1b", 8)
    assert found.status == "optimal"
    assert check(problem, found).step_seconds == found.step_seconds
    blocks = [i for i in range(len(problem.items)) if problem.items[i].resident]
    work = [item.forward + item.backward for item in problem.items]
    even = max(sum(work[: blocks[4]]), sum(work[blocks[4] :]))
    assert even >= 1.15 * max(s.forward + s.backward for s in found.stage_plans)
