"""A stream: every run and every resume sees the same samples at the same batch number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

import esper
from esper.growing.data.streams import StreamSource
from esper.growing.trainers import data as trainer_data
from esper.growing.trainers.data import StreamReader
from esper.growing.trainers.program import Program
from esper.kasmina.tracing import trace_model
from grow_support import every_batch, read_parts, runs_of, same_weights

SAMPLES, BATCH = 50, 4
X = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(0))
X[:, 0] = torch.arange(SAMPLES)
Y = torch.arange(SAMPLES) % 2


class Augmented(Dataset[tuple[Tensor, int]]):
    """Random transforms: from torch, numpy and Python."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        x = X[number].clone()
        x[1] += torch.rand(()) + np.random.rand()
        return x, int(Y[number])


class Unknown(IterableDataset[tuple[Tensor, int]]):
    """Nobody knows how many there are."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for number in range(SAMPLES):
            x = X[number].clone()
            x[1] += torch.rand(())
            yield x, int(Y[number])


def loader() -> DataLoader[Any]:
    return DataLoader(Augmented(), BATCH, shuffle=True)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def own_loader() -> DataLoader[Any]:
    return DataLoader(Augmented(), BATCH, shuffle=True, generator=generator())


HELD = X[:20], Y[:20]
MAKE = {"dataset": Augmented, "loader": loader, "own loader": own_loader, "stream": Unknown}


def reader(kind: str) -> StreamReader:
    return reader_of(MAKE[kind](), None if "loader" in kind else BATCH)


def reader_of(given: Any, batch_size: int | None) -> StreamReader:
    data = read_parts(given, HELD, HELD, batch_size=batch_size)
    assert isinstance(data.train, StreamSource)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    inputs = trace_model(lambda: model, X[:4]).inputs
    return StreamReader(data.train, inputs, 0, torch.device("cpu"))


def seen(source: StreamReader, number: int) -> bytes:
    (values,), targets = source.batch(number)
    assert len(values) == BATCH
    return values.numpy().tobytes() + targets.numpy().tobytes()


@pytest.fixture(scope="module", params=list(MAKE))
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(kind) -> list[bytes]:
    source = reader(kind)
    return [seen(source, number) for number in range(40)]


def test_no_batch_comes_again(whole):
    """Of the bug that batch 0 was served at 0, 13 and 25."""
    assert len(set(whole)) == len(whole)


def test_no_sample_comes_more_often_than_another_in_an_epoch(kind, whole):
    per_epoch = SAMPLES // BATCH
    for epoch in range(3):
        some = whole[epoch * per_epoch : (epoch + 1) * per_epoch]
        rows = [np.frombuffer(one[: BATCH * 12], np.float32).reshape(BATCH, 3) for one in some]
        times = Counter(int(number) for row in rows for number in row[:, 0])
        assert set(times.values()) == {1}
        assert len(times) == per_epoch * BATCH


@settings(max_examples=6)
@given(st.lists(st.integers(0, 39), min_size=1, max_size=6))
def test_whoever_asks_for_a_number_gets_the_same_batch(kind, whole, numbers):
    source = reader(kind)
    for number in numbers:
        assert seen(source, number) == whole[number], number


@pytest.mark.parametrize("window", [1, 16])
def test_runs_in_lockstep_one_after_the_other_and_resumed_see_the_same(
    kind, whole, monkeypatch, window
):
    monkeypatch.setattr(trainer_data, "WINDOW", window)
    source = reader(kind)
    for number in range(15):
        for _ in range(3):
            assert seen(source, number) == whole[number]
    for number in range(20):
        assert seen(source, number) == whole[number]
    for number in range(14, 30):
        assert seen(reader(kind) if number == 14 else source, number) == whole[number]


def drawn_by(kind: str, own: torch.Generator) -> DataLoader[Any]:
    if kind == "weighted":
        sampler = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=own)
        return DataLoader(Augmented(), BATCH, sampler=sampler)
    return DataLoader(
        Augmented(), BATCH if kind == "batches" else None, shuffle=True, generator=own
    )


@pytest.mark.parametrize("kind", ["batches", "samples", "weighted"])
def test_generators_of_a_loader_decide_nothing_and_stay_as_they_are(kind):
    """Runs of a search, and a resume in the same process, find them in any state."""
    own = generator()
    data = drawn_by(kind, own)
    one = reader_of(data, BATCH if kind == "samples" else None)
    expected = [seen(one, number) for number in range(15)]
    assert len(set(expected)) == 15
    own.manual_seed(8)
    before = own.get_state()
    assert [seen(one, number) for number in (0, 5, 14)] == [expected[n] for n in (0, 5, 14)]
    assert torch.equal(own.get_state(), before)
    two = reader_of(data, BATCH if kind == "samples" else None)
    assert [seen(two, number) for number in range(15)] == expected


def grow(folder: Path, **settings: Any) -> esper.GrowResult:
    torch.manual_seed(99)
    return esper.grow(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), Augmented(), HELD, HELD,
        budget=esper.Budget(host_runs=8), epochs=2, batch_size=BATCH, folder=folder, widths=(),
        verbose=False, device="cpu", **settings,
    )  # fmt: skip


class Stop(BaseException):
    """Ends a search like a kill."""


def test_a_killed_search_of_a_stream_resumes_bit_for_bit(tmp_path, monkeypatch):
    whole = grow(tmp_path / "whole")
    assert "train: streamed" in "; ".join(whole.info.notes)
    every_batch(monkeypatch, saves=True)
    train, home = Program.run_eager, tmp_path / "killed"

    def killed(self: Program) -> None:
        if self.job.number == 1 and self.trained == 7:
            raise Stop
        train(self)

    with monkeypatch.context() as patch:
        patch.setattr(Program, "run_eager", killed)
        with pytest.raises(Stop):
            grow(home)
    (folder,) = home.iterdir()
    again = grow(home, resume=folder)
    assert runs_of(again.folder) == runs_of(whole.folder)
    assert same_weights(again, whole)
