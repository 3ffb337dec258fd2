"""A network cut over ranks is trained as in one process; each rank holds its part."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import sharded_trainer_cases as cases
from esper.growing.ranks import ShardRanks
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.shard_units import choose_units, watch_calls
from esper.growing.trainers.sharded import ShardedTrainer
from sharded_trainer_cases import CASES, Found

TESTS = Path(__file__).parents[2]
RANKS = 2
FORKS = ("-W", "ignore:This process:DeprecationWarning")
"""The driver forks its ranks, of which Python 3.12 warns; here stderr is counted."""
QUICK = ("conv", "stopped", "resumed", "memory")
SLOW = tuple(name for name in CASES if name not in (*QUICK, "half"))


def start_ranks(ranks: int, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    driver = str(TESTS / "sharded_trainer_cases.py")
    return subprocess.run(
        [sys.executable, *FORKS, driver, str(ranks), str(folder), *names],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_ranks(ranks: int, folder: Path, *names: str) -> Callable[[str, int], Found]:
    """Train on ranks; returns a reader of (case, rank)."""
    done = start_ranks(ranks, folder, *names)
    assert (done.returncode, done.stderr) == (0, "")
    return lambda name, rank: torch.load(folder / f"{name}-{rank}.pt")


def assert_same(found: Found, expected: Found, tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=f"{name}: {{}}"
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("quick")


@pytest.fixture(scope="module")
def quick(folder: Path) -> Callable[[str, int], Found]:
    cases.write_eager_checkpoint(folder)
    return run_ranks(RANKS, folder, *QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Callable[[str, int], Found]:
    return run_ranks(RANKS, tmp_path_factory.mktemp("others"), *SLOW, "half", "streamed")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Found:
    return cases.eager("conv", folder)


def test_two_ranks_train_what_one_process_trains(quick, alone):
    """From the weights of rank 0, with batch norm over all ranks and shares of 4 and 3 samples."""
    assert_same(quick("conv", 0), alone)


def test_ranks_agree_bit_for_bit(quick):
    assert_same(quick("conv", 1), quick("conv", 0), tolerance=0.0)


def test_a_rank_that_stops_stops_all_and_one_process_trains_on(folder, quick, alone):
    stopped = quick("stopped", 0)
    assert 3 <= int(stopped["numbers"][0]) < CASES["conv"].batches
    assert_same(quick("stopped", 1), stopped, tolerance=0.0)
    job = cases.make_job(CASES["conv"], folder / "stopped.safetensors")
    (resumed,) = EagerTrainer(cases.make_task(CASES["conv"])).train(iter([job]), cases.never)
    assert_same(cases.found(resumed), alone)


def test_ranks_train_on_from_the_checkpoint_of_one_process(quick, alone):
    assert_same(quick("resumed", 0), alone)


def test_a_rank_holds_its_part(quick):
    whole = sum(p.nbytes for p in cases.Tokens().parameters())
    each = [quick("memory", rank) for rank in range(RANKS)]
    for mine in each:
        assert mine["parameters"] < 0.6 * whole
        assert 0 < mine["whole"] < 0.7 * whole, "a few units are whole at a time"
    assert sum(mine["parameters"] for mine in each) == whole
    assert each[0]["state"] < 0.6 * whole


@pytest.mark.parametrize(("device", "bitwise"), [("cpu", True), ("cuda", False)])
def test_only_ranks_on_cpus_promise_the_same_bits_again(device: str, bitwise: bool):
    task = replace(cases.make_task(CASES["conv"]), device=torch.device(device))
    ranks = cast(ShardRanks, SimpleNamespace(size=2))
    assert ShardedTrainer(task, ranks).how().bitwise is bitwise


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_case_is_trained_as_in_one_process(others, tmp_path, name: str):
    assert_same(others(name, 0), cases.eager(name, tmp_path))


@pytest.mark.slow
def test_half_precision_is_near_that_of_one_process(others, tmp_path):
    assert_same(others("half", 0), cases.eager("half", tmp_path), tolerance=2e-2)


@pytest.mark.slow
def test_rank_0_alone_reads_a_stream(others):
    case = CASES["conv"]
    task = cases.replace(cases.make_task(case), train=cases.Read())
    (alone,) = EagerTrainer(task).train(iter([cases.make_job(case, Path("none"))]), cases.never)
    assert_same(others("streamed", 1), cases.found(alone))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 3])
def test_any_number_of_ranks_trains_the_same(tmp_path, ranks: int):
    """With three ranks, a batch of one sample and a parameter with one row leave some idle."""
    names = ("conv", "dropping", "few samples")
    found = run_ranks(ranks, tmp_path, *names)
    for name in names:
        assert_same(found(name, ranks - 1), cases.eager(name, tmp_path))


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_is_trained_on_by_three(folder, quick, tmp_path, alone):
    (tmp_path / "eager.safetensors").write_bytes((folder / "stopped.safetensors").read_bytes())
    assert_same(run_ranks(3, tmp_path, "resumed")("resumed", 2), alone)


@pytest.mark.slow
def test_an_interrupt_on_one_rank_stops_all(tmp_path):
    found = run_ranks(RANKS, tmp_path, "signalled")
    assert 2 <= int(found("signalled", 1)["numbers"][0]) < CASES["conv"].batches
    assert_same(found("signalled", 1), found("signalled", 0), tolerance=0.0)
    assert (tmp_path / "signalled.safetensors").exists()


@pytest.mark.slow
def test_no_run_is_taken_after_a_stop(tmp_path):
    found = run_ranks(RANKS, tmp_path, "last batch")
    assert all(found("last batch", rank)["stopped"] for rank in range(RANKS))
    assert int(found("last batch", 0)["numbers"][0]) == CASES["conv"].batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mixing", "depends on the other samples of the batch"),
        ("tracking", "Tracking updates its buffer 'norm.running_mean'"),
        ("keeping", "Keeping.kept holds a parameter"),
        ("other network", "rank 1: other network than on rank 0"),
        ("no network", "no network today"),
        ("bad tick", "no time"),
    ],
)
def test_all_ranks_end_with_one_line(tmp_path, name: str, says: str):
    done = start_ranks(RANKS, tmp_path, name)
    reported = done.stderr.strip().splitlines()
    assert (done.returncode, len(reported)) == (2, RANKS), done.stderr
    assert all(says in line for line in reported)


# ---- units ---------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Parts that cannot be units beside some that can."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.twice, self.read = (nn.Linear(8, 8) for _ in range(3))
        self.changing = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))
        self.dropping = nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(8, 8))
        self.tied, self.other = nn.Linear(8, 8), nn.Linear(8, 8)
        self.other.weight = self.tied.weight
        self.lender, self.never = nn.Linear(8, 8), nn.Linear(8, 8)
        self.never.weight = self.lender.weight
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(self.plain(x.to(self.plain.weight.dtype))))
        x = x @ self.read.weight + self.read(x)
        x = self.dropping(self.changing(x))
        return self.lender(self.other(self.tied(self.attention(x, x, x)[0])))


def test_units_are_called_once_and_keep_their_parameters_to_themselves():
    network = Odd().eval()
    calls, _ = watch_calls(network, lambda: network(torch.randn(2, 8)))
    names = {part: name for name, part in network.named_modules()}
    found = {names[unit] for unit in choose_units(network, calls, small=0)}
    assert found == {"plain", "changing.1", "dropping.1", "attention"}


def test_a_small_network_is_one_unit():
    network = Odd().eval()
    calls, _ = watch_calls(network, lambda: network(torch.randn(2, 8)))
    assert choose_units(network, calls) == []
