"""A profiler of the user's keeps what it has recorded, whatever is measured meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import fxmem
from fxmem.allocator import device_peaks, peak_of_calls, record
from fxmem.costs import MeasuredCosts
from fxmem.errors import ProfilerBusy
from fxmem.runtime.native import Native, load
from tests.graphs import joint_graph

CPU = torch.device("cpu")
WAYS: list[Callable[[Callable[[], object]], object]] = [
    record,
    lambda call: peak_of_calls([call], CPU),
    lambda call: device_peaks(call, 2),
]


def recorded_names(call: Callable[[], object]) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as mine:
        torch.ones(3).sinh()
        call()
        torch.ones(3).cosh()
    return {event.name for event in mine.events()}


@pytest.mark.parametrize("way", WAYS)
def test_a_second_recording_is_refused_and_the_first_goes_on(way) -> None:
    def call() -> None:
        with pytest.raises(ProfilerBusy, match="after the first step"):
            way(lambda: torch.ones(3).tanh())

    assert {"aten::sinh", "aten::cosh"} <= recorded_names(call)


@pytest.fixture
def native() -> Native:
    """The compiled allocator, loaded by the test that needs it and by no import."""
    found = load()
    if found is None:
        pytest.skip("no compiler for the native allocator")
    return found


@pytest.mark.usefixtures("native")
def test_a_first_step_in_the_users_profile(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path))
    module, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)), torch.randn(4, 8)
    step = fxmem.optimize(module, None)
    assert {"aten::sinh", "aten::cosh"} <= recorded_names(lambda: step(x).sum().backward())
    assert not list(tmp_path.glob("costs/*.json"))  # what was timed beside it is not kept
    found = [p.grad for p in module.parameters()]
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(found, [p.grad for p in module.parameters()])


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_bytes_beside_a_profiler_are_those_without(native: Native, size: int) -> None:
    def call() -> torch.Tensor:
        return (torch.ones(size) + 1).sort().values

    (alone,) = peak_of_calls([call], CPU)
    found: list[int] = []
    recorded_names(lambda: found.append(native.peak_of(call)))
    assert found == [alone]


@pytest.mark.usefixtures("native")
def test_costs_measured_beside_a_profiler_have_the_same_bytes(tmp_path) -> None:
    joint = joint_graph([(n, n, n + 1) for n in range(13)], [(5, 0, 1), (1, 2, 3)])
    nodes = [n for n in joint.graph.nodes if n.op == "call_function"]
    found: dict = {}
    alone = MeasuredCosts(CPU, tmp_path / "a")(nodes)
    recorded_names(lambda: found.update(MeasuredCosts(CPU, tmp_path / "b")(nodes)))
    assert {n: c.workspace_bytes for n, c in found.items()} == {
        n: c.workspace_bytes for n, c in alone.items()
    }
