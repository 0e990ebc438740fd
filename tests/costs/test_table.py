"""Names of operator calls, and the file of their costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxmem.costs.layouts import Layout
from fxmem.costs.table import Cost, CostFile, device_key, operator_key
from fxmem.files.store import cache_directory

CPU = torch.device("cpu")


def keys(function, *inputs) -> list[str]:
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    return [operator_key(n) for n in graph.nodes if n.op == "call_function"]


def test_key_holds_all_that_changes_the_cost() -> None:
    x, y = torch.ones(3, 4), torch.ones(4, 5)
    (plain,) = keys(torch.mm, x, y)
    assert plain == "aten.mm.default(float32[3, 4]/[4, 1]@cpu, float32[4, 5]/[5, 1]@cpu)"
    variants = [
        keys(torch.mm, x.double(), y.double())[-1],
        keys(torch.mm, torch.ones(2, 4), y)[-1],
        keys(lambda a, b: torch.mm(a, b.t()), x, torch.ones(5, 4))[-1],
        keys(torch.matmul, torch.ones(2, 3, 4), torch.ones(2, 4, 5))[-1],
    ]
    assert len({plain, *variants}) == 5


def test_key_holds_numbers_lists_and_keywords() -> None:
    x = torch.ones(3, 4)
    found = keys(lambda a: a.sum([0], keepdim=True) * 2.5, x)
    assert found == [
        "aten.sum.dim_IntList(float32[3, 4]/[4, 1]@cpu, [0], True)",
        "aten.mul.Tensor(float32[1, 4]/[4, 1]@cpu, 2.5)",
    ]
    (cat,) = keys(lambda a: torch.cat([a, a], 1), x)
    assert cat == "aten.cat.default([float32[3, 4]/[4, 1]@cpu, float32[3, 4]/[4, 1]@cpu], 1)"
    (like,) = keys(lambda a: torch.ops.aten.zeros_like.default(a, dtype=torch.int64), x)
    assert "dtype=torch.int64" in like


def test_names_of_nodes_do_not_count() -> None:
    first, second = keys(lambda a: torch.exp(a) + torch.exp(a), torch.ones(3))[:2]
    assert first == second


def test_device_key_names_threads_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"threads{torch.get_num_threads()}-torch{torch.__version__}" in device_key(CPU)
    before = device_key(CPU)
    torch.set_num_threads(torch.get_num_threads() + 1)
    assert device_key(CPU) != before
    torch.set_num_threads(1)


def test_file(tmp_path: Path) -> None:
    file = CostFile(CPU, tmp_path)
    assert file.read() == {}
    file.add({"a": Cost(0.5, 10)})
    file.add({"b": Cost(1e-6, 0), "a": Cost(0.25, 11)})
    assert CostFile(CPU, tmp_path).read() == {"a": Cost(0.25, 11), "b": Cost(1e-6, 0)}
    assert [p.name for p in file.path.parent.iterdir()] == [file.path.name]  # no leftovers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"a": 1}',
        '{"a": [1]}',
        '{"a": ["x", "y"]}',
        '{"a": [null, 2]}',
        '{"a": [Infinity, 2]}',
        '{"a": [1.0, Infinity]}',
        '{"a": [NaN, 2]}',
        '{"a": [1e400, 2]}',
        '{"a": [1, 1e400]}',
        '{"a": [1, true]}',
        '{"a": [1, 2.5]}',
        '{"a": {"b": 1}}',
        '{"a": [1, ' + "9" * 5000 + "]}",
        '{"a": [1, ' + "9" * 30 + "]}",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a": [1e9, 2]}',
        '{"a": [1, 2]}',  # of an older version, which did not look at results
        '{"a": [1, 2, 3]}',
        '{"a": [1, 2, [3]]}',
        '{"a": [1, 2, [["float32", [2], [1, 1]]]]}',
        '{"a": [1, 2, [["float32", [2], [-1]]]]}',
        '{"a": [1, 2, [["float32", 2, 1]]]}',
        '{"a": [1, 2, [["tensor", [2], [1]]]]}',
        '{"a": [1, 2, [[[], [2], [1]]]]}',
        "\x00",
    ],
)
def test_damaged_file_counts_as_empty(text: str, tmp_path: Path) -> None:
    file = CostFile(CPU, tmp_path)
    file.path.parent.mkdir(parents=True)
    file.path.write_text(text)
    assert file.read() == {}
    file.add({"a": Cost(1.0, 1)})
    assert file.read() == {"a": Cost(1.0, 1)}


def test_layouts(tmp_path: Path) -> None:
    cost = Cost(1.0, 1, (Layout("bfloat16", (2, 3), (1, 2)), None))
    file = CostFile(CPU, tmp_path)
    file.add({"a": cost})
    assert file.read() == {"a": cost}


def test_negative_costs_are_not_believed(tmp_path: Path) -> None:
    file = CostFile(CPU, tmp_path)
    file.path.parent.mkdir(parents=True)
    file.path.write_text(json.dumps({"a": [-1, 5, []], "b": [1, -5, []], "c": [1, 5, []]}))
    assert file.read() == {"c": Cost(1.0, 5)}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = CostFile(CPU, tmp_path)
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"\xff\xfe\xfa")
    assert file.read() == {}


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CostFile(CPU, tmp_path)
    file.add({"a": Cost(1.0, 1)})

    def full(*_paths: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    file.add({"b": Cost(1.0, 1)})
    assert [p.name for p in file.path.parent.iterdir()] == [file.path.name]
    assert file.read() == {"a": Cost(1.0, 1)}


def test_unwritable_folder_is_no_cache(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    file = CostFile(CPU, blocker)
    file.add({"a": Cost(1.0, 1)})
    assert file.read() == {}


def test_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FXMEM_CACHE_DIR", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("FXMEM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "fxmem"
