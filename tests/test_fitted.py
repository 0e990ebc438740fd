"""The optimised module as an object: copied, saved, shared by threads, carried into a fork."""

from __future__ import annotations

import copy
import io
import logging
import os
import pickle
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxmem
from tests.cases import make
from tests.modules import MLP, Outside
from tests.steps import differences, equal, run


def gradient_context(fitted: fxmem.FittedModule, weights: int) -> int:
    """Bytes of gradients that the plan in use leaves room for."""
    return fitted.plan.resident_bytes - weights


def test_a_copy_has_weights_and_plans_of_its_own() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, 0.9, case.args, time_limit=0.3)
    twin = copy.deepcopy(fitted)
    assert type(twin) is fxmem.FittedModule
    assert twin.plan is None and fitted.plan is not None
    assert twin._session is not fitted._session
    with torch.no_grad():
        for parameter in fitted.parameters():
            parameter.zero_()
    assert all(p.any() for p in twin.parameters())
    found = run(twin, twin._orig_mod, case)
    assert len(twin.report().rows) == 1 and len(fitted.report().rows) == 1
    assert all(p.grad is None for p in fitted.parameters())
    eager = make("mlp")
    assert differences(found, run(eager.module, eager.module, eager)) == []


def test_a_copy_charges_its_own_weights() -> None:
    case = make("mlp")
    fitted = fxmem.optimize(case.module, None, case.args, optimizer="adamw")
    twin = copy.deepcopy(fitted)
    fitted.double()
    twin(*case.args)
    plain = fxmem.optimize(make("mlp").module, None, case.args, optimizer="adamw")
    assert twin.plan.resident_bytes == plain.plan.resident_bytes


def test_a_module_with_an_optimised_part_is_copied() -> None:
    case = make("outside")
    whole = nn.Sequential(fxmem.optimize(case.module, None), nn.Linear(64, 1))
    twin = copy.deepcopy(whole)
    twin(case.args[0]).sum().backward()
    assert all(p.grad is None for p in whole.parameters())
    assert all(p.grad is not None for p in twin.parameters())


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_saved_and_loaded_whole(how: str) -> None:
    case = make("convnet")
    fitted = fxmem.optimize(case.module, 0.95, case.args, time_limit=0.3, progress=print)
    wanted = fitted.state_dict()
    if how == "pickle":
        loaded = pickle.loads(pickle.dumps(fitted))
    else:
        file = io.BytesIO()
        torch.save(fitted, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
    assert type(loaded) is fxmem.FittedModule and loaded.plan is None
    found = loaded.state_dict()
    assert found.keys() == wanted.keys()
    assert all(equal(found[name], wanted[name]) for name in wanted)
    steps = run(loaded, loaded._orig_mod, case)
    assert differences(steps, run(fitted, case.module, case)) == []
    assert loaded.plan.budget_bytes == fitted.plan.budget_bytes


def test_a_step_with_few_gradients_is_not_planned_as_one_with_all() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    x = torch.randn(8, 64)
    fitted = fxmem.optimize(module, None, (x,))
    base = fitted.plan.resident_bytes
    sizes = []
    for kept in (0, 1, 2, 4):
        fitted.zero_grad()
        for parameter in list(module.parameters())[:kept]:
            parameter.grad = torch.zeros_like(parameter)
        fitted(x).sum().backward()
        sizes.append(gradient_context(fitted, base))
    weight, bias = 64 * 64 * 4, 64 * 4
    assert sizes == [0, weight, weight + bias, 2 * (weight + bias)]
    # Beyond a handful of sets, one that leaves room for more serves.
    fitted.zero_grad()
    module[2].bias.grad = torch.zeros(64)
    fitted(x)
    assert gradient_context(fitted, base) == weight
    assert len(fitted.report().rows) == 4


class ReadsOne(nn.Module):
    """The second argument is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Outside(depth=2)

    def forward(self, x: torch.Tensor, _y: torch.Tensor, **_more: object) -> torch.Tensor:
        return self.body(x)


def test_arguments_that_nothing_reads_are_held_too() -> None:
    """Found by fuzzing: Dynamo leaves them out of the graph."""
    x, y = torch.randn(8, 64), torch.randn(100, 64)
    fitted = fxmem.optimize(ReadsOne(), None)
    fitted(x, x, z=[x])
    with_one = fitted.plan.resident_bytes
    torch._dynamo.reset()
    other = fxmem.optimize(ReadsOne(), None)
    other(x, y, z=[y[:50], None, 3])
    assert other.plan.resident_bytes - with_one == y.numel() * 4


LOGGER = logging.getLogger("tests")


class Logs(nn.Module):
    """Writes to its log in forward, as Transformers' losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Outside(depth=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LOGGER.warning("a step with %d rows", x.shape[0])
        return self.body(x)


def test_a_line_in_a_log_ends_no_graph() -> None:
    module, x = Logs(), torch.randn(8, 64)
    fitted = fxmem.optimize(module, None, (x,))
    assert equal(fitted(x), module(x))


def test_threads_share_one_module() -> None:
    """Forwards wait for each other; each thread gets its own numbers."""
    module = Outside()
    inputs = [torch.randn(rows, 64) for rows in (8, 16, 8, 24)]
    wanted = [torch.autograd.grad(module(x).sum(), list(module.parameters())) for x in inputs]
    fitted = fxmem.optimize(module, None)
    found: dict[int, tuple] = {}
    failed: list[BaseException] = []
    gate = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        try:
            gate.wait()
            for _ in range(3):
                loss = fitted(inputs[number]).sum()
                found[number] = torch.autograd.grad(loss, list(module.parameters()))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for number, gradients in enumerate(wanted):
        assert all(map(equal, found[number], gradients))
    assert len(fitted.report().rows) == 3


def test_a_rehearsal_in_one_thread_gives_no_made_up_numbers_in_another() -> None:
    module, x = Outside(), torch.randn(8, 64)
    wanted = module(x)
    started, found = threading.Event(), []

    def tell(stage: str, _details: object) -> None:
        if stage == "trace":
            started.set()

    fitted = fxmem.optimize(module, None, (x,))
    fitted._session.options = fxmem.planning.Options(
        fitted._session.options.budget, fitted._session.options.costs, progress=tell
    )

    def call() -> None:
        started.wait(10)
        found.extend(fitted(x) for _ in range(3))

    thread = threading.Thread(target=call)
    thread.start()
    fitted.rehearse((torch.randn(16, 64),))
    thread.join()
    assert len(found) == 3 and all(equal(f, wanted) for f in found)


def in_a_fork(report: Callable[[], bytes]) -> bytes:
    """What a child process of this one reports; it ends in any case."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads forks
        child = os.fork()
    if child == 0:
        try:
            os.write(write, report())
        except BaseException as error:
            os.write(write, str(error).encode()[:200])
        finally:
            os._exit(0)
    os.close(write)
    answer = os.read(read, 200)
    os.waitpid(child, 0)
    return answer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_trains_on() -> None:
    case = make("mlp")
    plain = torch.compile(copy.deepcopy(case.module), backend="aot_eager")
    run(plain, case.module, case, 1)
    fitted = fxmem.optimize(case.module, 0.9, case.args, time_limit=0.3)
    wanted = run(fitted, case.module, case, 1)[0]
    unfit = in_a_fork(lambda: run(plain, case.module, case, 1) and b"")
    if unfit:
        pytest.skip(f"torch.compile itself does not train on here: {unfit.decode()}")

    def report() -> bytes:
        step = run(fitted, case.module, case, 1)[0]
        return b"same" if not differences([step], [wanted]) else b"other"

    assert in_a_fork(report) == b"same"


class Fails(torch.autograd.Function):
    """Raises, or runs out of memory, in the midst of backward."""

    error: Exception | None = None

    @staticmethod
    def forward(_ctx, x):
        return x * 1

    @staticmethod
    def backward(_ctx, gradient):
        return gradient


@torch.library.custom_op("fxmem_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    if Fails.error is not None:
        raise Fails.error
    return x * 2


@fragile.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _double(_ctx, gradient: torch.Tensor) -> torch.Tensor:
    return fragile(gradient)


fragile.register_autograd(_double)


class Fragile(nn.Module):
    """Its backward calls an operator that can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.body = MLP(depth=2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.body(fragile(torch.tanh(self.body.layers[0](x))), y)


@pytest.mark.parametrize(
    "error", [RuntimeError("no such thing"), torch.OutOfMemoryError("out of memory")]
)
def test_the_step_after_a_failed_one_works_and_nothing_leaks(error: Exception) -> None:
    torch.manual_seed(0)
    module, args = Fragile(), (torch.randn(16, 64), torch.randn(16, 64))
    eager = copy.deepcopy(module)
    fitted = fxmem.optimize(module, 0.95, args, time_limit=0.3)
    fitted(*args).backward()
    plan = fitted.plan
    for _ in range(2):
        fitted.zero_grad()
        loss = fitted(*args)
        Fails.error = error
        try:
            with pytest.raises(type(error), match=str(error)):
                loss.backward()
        finally:
            Fails.error = None
        fitted.zero_grad()
    del loss
    before = _live_bytes()
    for _ in range(3):
        fitted.zero_grad()
        fitted(*args).backward()
    fitted.zero_grad()
    assert _live_bytes() == before
    fitted(*args).backward()
    eager(*args).backward()
    assert fitted.plan is plan
    for new, old in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad)


def _live_bytes() -> int:
    from fxmem.measure import _all_tensor_bytes

    return _all_tensor_bytes()
