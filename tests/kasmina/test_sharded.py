"""Networks cut over ranks compute what `loop` computes, hold their part, and save plain members."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sharded_cases
from esper.device.graphs import reason_against_graphs
from esper.device.shards import BatchShare
from esper.kasmina import PopulationConfig
from esper.kasmina.stacked.sharded_store import ALIGNMENT, _UnitLayout
from sharded_cases import CASES, Result
from support import batch, make_population, refused

TESTS = Path(__file__).parents[1]
RANKS = 2
FORKS = ("-W", "ignore:This process:DeprecationWarning")
"""The driver forks its ranks, of which Python 3.12 warns; here stderr is counted."""
TOLERANCE = 1e-5
QUICK = ("life", "memory", "saved", "loaded")
SLOW = tuple(name for name in CASES if name not in QUICK)


def start_ranks(ranks: int, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, *FORKS, str(TESTS / "sharded_driver.py"), str(ranks), str(folder), *names],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_ranks(ranks: int, folder: Path, *names: str) -> Callable[[str, int], Result]:
    """Run cases under executor `sharded`; returns a reader of (case, rank)."""
    done = start_ranks(ranks, folder, *names)
    assert done.returncode == 0, done.stderr
    return lambda name, rank: torch.load(folder / f"{name}-{rank}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Result:
    """The program that is saved in the middle, under loop."""
    return sharded_cases.saved("loop", folder)


@pytest.fixture(scope="module")
def quick(folder: Path, alone: Result) -> Callable[[str, int], Result]:
    return run_ranks(RANKS, folder, *QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Callable[[str, int], Result]:
    return run_ranks(RANKS, tmp_path_factory.mktemp("others"), *SLOW)


def assert_same(found: Result, expected: Result, tolerance: float = TOLERANCE) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, equal_nan=True, msg=f"{name}: {{}}"
        )


def test_losses_of_a_whole_life_equal_those_of_loop(quick):
    """20 batches; seeds germinate, train, blend, hold, become permanent and are pruned."""
    assert_same(quick("life", 0), CASES["life"]("loop"))


def test_ranks_agree_bit_for_bit(quick):
    assert_same(quick("life", 1), quick("life", 0), tolerance=0.0)


def test_a_rank_holds_its_part_of_parameters_and_optimiser_state(quick):
    whole = int(CASES["memory"]("loop")["held"])
    each = [int(quick("memory", rank)["held"]) for rank in range(RANKS)]
    assert each[0] == each[1]
    assert whole / RANKS <= each[0] <= 1.05 * whole / RANKS


def test_a_few_segments_are_whole_at_a_time(quick):
    """Forward and backward, of four blocks, embedding and head."""
    found = quick("memory", 0)
    assert 0 < int(found["gathered"]) < 0.5 * int(found["host"])


def test_sharded_save_is_that_of_loop(folder, alone, quick):
    resumed = sharded_cases.loaded("loop", folder / "sharded")
    assert_same(resumed, alone)
    assert_same(quick("saved", 0), alone)


def test_sharded_resumes_the_save_of_another_executor(alone, quick):
    assert_same(quick("loaded", 0), alone)


def test_vmap_resumes_a_sharded_save(folder, alone, quick):
    assert_same(sharded_cases.loaded("vmap", folder / "sharded"), alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_case_equals_loop(others, name: str):
    assert_same(others(name, 0), CASES[name]("loop"))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_any_number_of_ranks_equals_loop(tmp_path, ranks: int):
    found = run_ranks(ranks, tmp_path, "life", "frozen")
    for name in ("life", "frozen"):
        assert_same(found(name, ranks - 1), CASES[name]("loop"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says", "lines"),
    [
        ("killed", "lost contact with the others", 1),
        ("mixing", "depends on the other samples of the batch", RANKS),
        ("unlike", "rank 1: other members", RANKS),
        ("uneven", "updates its buffer 'norm.running_mean'", RANKS),
    ],
)
def test_all_ranks_end_with_one_line(tmp_path, name: str, says: str, lines: int):
    done = start_ranks(RANKS, tmp_path, name)
    assert done.returncode == 2
    reported = done.stderr.strip().splitlines()
    assert len(reported) == lines, done.stderr
    assert all(says in line for line in reported)


def test_outside_of_torchrun_is_one_line(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    line = refused(lambda: make_population(1, "sharded"))
    assert "torchrun" in line
    assert "RANK" in line


def test_graphs_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    line = refused(lambda: reason_against_graphs("on", torch.device("cuda"), "sharded"))
    assert "'sharded'" in line


def test_unknown_executor_lists_sharded():
    assert "sharded" in refused(lambda: PopulationConfig(executor="shard"))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shares_cover_a_batch_once(batch: int, ranks: int):
    shares = [BatchShare(batch, rank, ranks) for rank in range(ranks)]
    samples = [i for share in shares for i in range(share.first, share.first + share.count)]
    assert samples == list(range(batch))
    assert max(share.count for share in shares) - min(share.count for share in shares) <= 1
    assert all(len(range(batch)[share.samples]) == share.computed >= 1 for share in shares)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_units_are_aligned_and_even(ranks: int):
    unit = _UnitLayout({"a": (3, 5), "b": (2,), "scalar": ()}, ranks, first=8)
    flat = torch.arange(unit.shard * ranks)
    views = unit.named(flat)
    assert [tuple(view.shape) for view in views.values()] == [(3, 5), (2,), ()]
    assert not any(start % ALIGNMENT for start in (*unit.starts.values(), unit.shard))
    numbers = torch.cat([view.flatten() for view in views.values()])
    assert len(set(numbers.tolist())) == 18


def test_no_module_imports_torch_distributed_when_it_is_loaded():
    """Functions do, where a run is distributed; `import torch` loads that package itself."""
    statement = re.compile(r"^(import|from) torch\.distributed", re.MULTILINE)
    sources = (TESTS.parent / "src" / "esper").rglob("*.py")
    assert [path for path in sources if statement.search(path.read_text())] == []


def test_other_executors_do_not_import_torch_distributed(monkeypatch):
    plain, asked = builtins.__import__, set()

    def watching(name: str, scope: dict[str, str] | None = None, *rest: Any) -> Any:
        importer = (scope or {}).get("__name__", "")
        if importer.startswith("esper") and name.startswith("torch.distributed"):
            asked.add(importer)
        return plain(name, scope, *rest)

    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(builtins, "__import__", watching)
    for executor in ("loop", "vmap"):
        make_population(2, executor).train_batch(*batch(2))
    assert not asked
    assert not torch.distributed.is_initialized()
    monkeypatch.delenv("RANK", raising=False)
    refused(lambda: make_population(1, "sharded"))
    assert asked == {"esper.device.shards"}
