"""`fxmem.pipeline` over gloo: numbers, budgets, who holds what, and ranks that fail."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.fx as fx
from torch import Tensor

import fxmem
from fxmem.allocator import record
from fxmem.costs import Cost, MeasuredCosts
from fxmem.runtime import spill
from fxmem.runtime.pipelining import SCHEDULES
from fxmem.runtime.transfer import held_bytes
from fxmem.stages.pipeline_run import split_batch
from tests.pipelines import alone, layers, tiny_gpt, tiny_unet
from tests.processes import exit_codes, join_group, run_on
from tests.stage_cases import PRODUCTS

MODELS = {"gpt": tiny_gpt, "unet": tiny_unet}

TIGHTER = {("gpt", "1f1b"), ("gpt", "zbv"), ("unet", "gpipe")}


def make(case, budgets, schedule: str, **more) -> fxmem.Pipeline:
    model, x, target, loss_fn = case
    return fxmem.pipeline(
        model,
        budgets,
        (x,),
        target=target,
        loss_fn=loss_fn,
        schedule=schedule,
        time_limit=1,
        **more,
    )


def check_numbers(pipe: fxmem.Pipeline, case, wanted) -> int:
    """One step as in one process; measured peak bytes of this rank."""
    _, x, target, _ = case
    loss, gradients, buffers = wanted
    held = sum(v.nbytes for v in pipe.state_dict().values()) + x.nbytes + target.nbytes
    found: list[Tensor | None] = []
    peak = record(lambda: found.append(pipe.step(x, target=target))).peak
    is_last = len(pipe.plan.ranks) - 1 in pipe.plan.stages_of(pipe.rank)
    assert (found[0] is not None) == is_last
    if is_last:
        assert abs(float(found[0]) - loss) < 1e-5
    for name, parameter in pipe.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=2e-4, atol=2e-6)
    for name, tensor in pipe.state_dict().items():
        if name in buffers:
            torch.testing.assert_close(tensor, buffers[name])
    return held + peak


def check_peak(pipe: fxmem.Pipeline, case) -> None:
    """With gradients there, as where they are zeroed and not dropped, a step takes most."""
    _, x, target, _ = case
    held = sum(v.nbytes for v in pipe.state_dict().values()) + x.nbytes + target.nbytes
    held += sum(p.grad.nbytes for p in pipe.parameters() if p.grad is not None)
    peak = held + record(lambda: pipe.step(x, target=target)).peak
    assert peak <= pipe.plan.peak_bytes[pipe.rank] <= 1.03 * peak


def check_holdings(pipe: fxmem.Pipeline, model: torch.nn.Module) -> None:
    """Own parameters are there; all others are gone from the model, and from memory."""
    own = dict(pipe.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.is_meta != (name in own)
    names: list[set[str]] = [set()] * dist.get_world_size()
    dist.all_gather_object(names, set(own))
    assert set.union(*names) == {n for n, _ in model.named_parameters()}
    shared = set.intersection(*names)
    assert shared <= {"words.weight"}


def try_all(rank: int, ranks: int, cases: Sequence[tuple[str, str]]) -> None:
    join_group(rank, ranks)
    for kind, schedule in cases:
        wanted = alone(MODELS[kind]())
        case = MODELS[kind]()
        pipe = make(case, None, schedule)
        check_holdings(pipe, case[0])
        free = check_numbers(pipe, case, wanted)
        assert free <= pipe.plan.peak_bytes[rank]
        check_peak(pipe, case)

        if (kind, schedule) not in TIGHTER or ranks > 2:
            continue
        tight = MODELS[kind]()
        share = 0.9 if kind == "gpt" else 0.95  # the net keeps little that could be made again
        below = [int(share * p) for p in pipe.plan.peak_bytes]
        pipe = make(tight, below, schedule, cuts=pipe.plan.cuts)
        again = [d for p in pipe.plan.stage_plans for d in p.decisions.values()]
        assert any(isinstance(d, fxmem.Recompute) for d in again)
        assert check_numbers(pipe, tight, wanted) <= below[rank]
        check_peak(pipe, tight)
    dist.destroy_process_group()


EVERY = [(kind, schedule) for kind in MODELS for schedule in SCHEDULES]


def test_two_ranks() -> None:
    run_on(2, try_all, 2, [("unet", "interleaved")])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_schedule(ranks: int) -> None:
    run_on(ranks, try_all, ranks, EVERY)


def use_it(rank: int) -> None:
    """Budgets, an optimizer and the state, in one process group."""
    join_group(rank, 2)
    # Budgets of 3 to 1.
    case, wanted = tiny_gpt(), alone(tiny_gpt())
    budgets = (1_290_000, 430_000)
    pipe = make(case, budgets, "1f1b")
    assert check_numbers(pipe, case, wanted) <= budgets[rank]

    # An optimizer, the tied weight, and the whole state.
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    optimizer.step()
    pipe.zero_grad()
    model = tiny_gpt()[0]
    for name, parameter in model.named_parameters():
        parameter.data -= 0.1 * wanted[1][name]
    state = pipe.full_state_dict()
    assert (state is None) == (rank == 1)
    if state is not None:
        assert set(state) == {n for n, _ in model.named_parameters()}
        model.load_state_dict({**state, "head.weight": state["words.weight"]})
    tied: list = [None, None]
    mine = pipe.state_dict()["words.weight"]
    dist.all_gather_object(tied, mine)
    assert torch.equal(*tied)
    trained = dict(model.named_parameters())["words.weight"]
    torch.testing.assert_close(mine, trained)

    # A model on meta gets its parameters here, alike where they are tied, or from a state dict.
    _, x, target, loss_fn = tiny_gpt()
    with torch.device("meta"):
        empty = type(model)()
    pipe = make((empty, x, target, loss_fn), None, "1f1b")
    tied = [None, None]
    dist.all_gather_object(tied, pipe.state_dict()["words.weight"])
    assert torch.equal(*tied)
    pipe.load_state_dict(dict(tiny_gpt()[0].state_dict()))
    check_numbers(pipe, (empty, x, target, loss_fn), wanted)
    with pytest.raises(fxmem.FxmemError, match="lacks"):
        pipe.load_state_dict({})
    dist.destroy_process_group()


@pytest.mark.slow
def test_budgets_of_three_to_one_state_and_meta() -> None:
    run_on(2, use_it)


def refuse(rank: int) -> None:
    join_group(rank, 2)
    # No plan fits: every rank is told.
    with pytest.raises(fxmem.InfeasibleBudget, match="rank 1"):
        make(tiny_unet(), (None, 40_000), "1f1b")

    # Another model on one rank.
    case = tiny_gpt()
    if rank == 1:
        case = (case[0], case[1][:16], case[2][:16], case[3])
    with pytest.raises(fxmem.PlanMismatch, match="rank 1 has another step"):
        make(case, None, "1f1b")
    dist.destroy_process_group()


def test_what_does_not_fit_and_another_model_are_told_to_every_rank() -> None:
    run_on(2, refuse)


def dear_products(nodes: list[fx.Node]) -> dict[fx.Node, Cost]:
    """As measured, but that products take ten thousand times as long."""
    measured = MeasuredCosts(torch.device("cpu"))(nodes)
    return {
        node: replace(cost, seconds=cost.seconds * 1e4)
        if any(name in str(node.target) for name in PRODUCTS)
        else cost
        for node, cost in measured.items()
    }


def move_values(rank: int, folder: str) -> None:
    join_group(rank, 2)
    disk = os.path.join(folder, "disk")
    with pytest.raises(fxmem.FxmemError, match=r"rank 1: offload=.* is no directory"):
        make(layers(), None, "1f1b", offload=folder if rank == 0 else disk)
    dist.barrier()
    os.makedirs(disk, exist_ok=True)
    free = make(layers(), None, "1f1b", costs=dear_products).plan
    cuts, budgets = free.cuts, (950_000, None)
    assert free.peak_bytes[0] > 950_000
    case, wanted = layers(), alone(layers())
    pipe = make(case, budgets, "1f1b", cuts=cuts, costs=dear_products, offload=disk)
    moved, rest = pipe.plan.stage_plans
    assert moved.transfers and not rest.transfers
    assert pipe.plan.step_seconds > free.step_seconds
    assert check_numbers(pipe, case, wanted) <= (budgets[rank] or 1 << 60)
    check_peak(pipe, case)
    assert os.listdir(disk) == []
    assert rank == 1 or held_bytes(disk) == 0

    # A disk that is full on the first rank: it says so, and the other that it lost it.
    if rank == 0:
        spill.pwrite = no_space  # type: ignore[assignment]
    fault = "could not be written to .*disk: .*No space" if rank == 0 else "lost contact"
    dist.barrier()
    with pytest.raises(fxmem.PipelineError, match=fault):
        pipe.step(case[1], target=case[2])
    os._exit(7)


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_stages_move_values_to_a_directory_of_their_machine(tmp_path) -> None:
    codes = exit_codes(2, move_values, str(tmp_path))
    assert codes == [7, 7]


def lose_a_rank(rank: int, how: str, folder: str) -> None:
    join_group(rank, 2, seconds=60 if how == "dies" else 15)
    case = tiny_unet()
    pipe = make(case, None, "1f1b")
    _, x, target, _ = case
    pipe.step(x, target=target)
    if rank == 1:
        if how == "dies":
            os._exit(3)
        time.sleep(25)
        return
    start = time.monotonic()
    with pytest.raises(fxmem.PipelineError, match="rank 0 lost contact") as error:
        pipe.step(x, target=target)
    with pytest.raises(fxmem.PipelineError, match="broke off"):
        pipe.step(x, target=target)
    with open(f"{folder}/told", "w") as file:
        file.write(f"{time.monotonic() - start} {error.value}")
    os._exit(7)


@pytest.mark.parametrize("how", ["dies", pytest.param("hangs", marks=pytest.mark.slow)])
def test_a_rank_that_dies_or_hangs_ends_the_others(how: str, tmp_path) -> None:
    codes = exit_codes(2, lose_a_rank, how, str(tmp_path))
    assert codes == [7, 3 if how == "dies" else 0]
    seconds, text = (tmp_path / "told").read_text().split(" ", 1)
    assert float(seconds) < (40 if how == "dies" else 24)
    assert re.search(r"[FB] of microbatch \d in stage 0", text)


def test_batches_that_do_not_split_evenly() -> None:
    with pytest.raises(fxmem.FxmemError, match="10 does not split into 8"):
        split_batch((torch.zeros(10, 2),), 8)
    parts = split_batch((torch.arange(4), 7), 2)
    assert [p[0].tolist() for p in parts] == [[0, 1], [2, 3]] and parts[1][1] == 7
