"""What every test starts from."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence

# Before torch is imported: kineto would log two lines for each recording.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of processes that tests start
_CACHE = tempfile.TemporaryDirectory(prefix="fxmem-tests-")
os.environ["FXMEM_CACHE_DIR"] = _CACHE.name  # costs are measured once a run, on this machine

import pytest  # noqa: E402
import torch  # noqa: E402

from fxmem.solvers.remat import RematProblem, RematSolution, check  # noqa: E402

# Torch's own trace of each compilation: pytest would capture and print all of it.
trace_log = logging.getLogger("torch.__trace")
trace_log.handlers.clear()
trace_log.disabled = True

Scheduler = Callable[[Callable[[RematProblem], Sequence[int]]], None]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The same seed for every test, and no graph that Dynamo kept from another."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch._dynamo.reset()
    gc.collect()
    gc.freeze()  # each measured step collects garbage: what is loaded by now need not be looked at
    yield
    torch._dynamo.reset()


@pytest.fixture
def schedule_by(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Put a function from problem to schedule in the solver's place."""

    def install(choose: Callable[[RematProblem], Sequence[int]]) -> None:
        def solve(problem: RematProblem, budget: int | None, **_options: object) -> RematSolution:
            sequence = tuple(choose(problem))
            seconds, peak = check(problem, sequence)
            return RematSolution(sequence, seconds, peak, problem.base_time, "feasible", "test")

        monkeypatch.setattr("fxmem.scheduling.solve", solve)

    return install
