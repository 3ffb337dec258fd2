"""A stream of data on the default GPU: captured, and its batches are right on every CUDA stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import esper
from captured_support import CPU, digest, make_job, make_task, table_data, train_all
from cuda_support import DEVICE, NEEDS_CUDA
from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.data import WINDOW, StreamReader
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.job import Job
from esper.growing.trainers.task import Task
from grow_support import runs_of

pytestmark = NEEDS_CUDA
LONG = 400_000_000
"""Clock ticks that keep a CUDA stream busy for some tenths of a second."""


class Endless:
    """A stream of random batches of one epoch without an end."""

    batches_per_epoch = None

    def epoch(self, number: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(number)
        while True:
            x = torch.randn(16, 8, generator=generator)
            yield x, x[:, :3].argmax(1)


class Counter(nn.Module):
    """Cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.batches = nn.Linear(8, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return self.linear(x) * (0.5 if self.batches > 10 else 1.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def read(device: torch.device) -> StreamReader:
    return StreamReader(Endless(), make_task(table_data()).inputs, 0, device)  # type: ignore[arg-type]


def streamed() -> Task:
    return replace(make_task(table_data(), device=DEVICE), train=read(DEVICE))


def jobs_of(folder: Path, make: Callable[[], nn.Module]) -> list[Job]:
    return [make_job(make, number, folder, batches=60) for number in range(4)]


@pytest.mark.parametrize(("make", "trainer"), [(mlp, "captured"), (Counter, "eager")])
def test_runs_side_by_side_on_a_stream_are_the_eager_ones(tmp_path, make, trainer):
    found = train_all(CapturedTrainer(streamed()), jobs_of(tmp_path, make))
    eager = train_all(EagerTrainer(streamed()), jobs_of(tmp_path, make))
    assert {outcome.how.trainer for outcome in found.values()} == {trainer}
    assert {n: digest(one) for n, one in found.items()} == {n: digest(eager[n]) for n in eager}


def test_a_lane_that_lags_behind_still_computes_with_every_batch():
    """Those that are no longer kept when it gets there included."""
    reader, count = read(DEVICE), 3 * WINDOW
    lanes = [torch.cuda.Stream(DEVICE) for _ in range(2)]
    found: list[list[Tensor]] = [[], []]
    for number in range(count):
        for lane, seen in zip(lanes, found, strict=True):
            with torch.cuda.stream(lane):
                if not number:
                    torch.cuda._sleep(LONG)
                (values,), targets = reader.batch(number)
                seen.append(torch.cat([values, targets[:, None]], 1))
    assert not lanes[0].query(), "the device did not lag behind"
    torch.cuda.synchronize()
    expected = read(CPU)
    for number in range(count):
        (values,), targets = expected.batch(number)
        for seen in found:
            assert torch.equal(seen[number].cpu(), torch.cat([values, targets[:, None]], 1))


class Augmented(Dataset[tuple[Tensor, int]]):
    """A random transform, so that samples are read anew in every epoch."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        x, y = table_data()
        return x[number] + 0.1 * torch.rand(8), int(y[number])


def test_a_search_of_transformed_samples_is_captured_on_the_gpu_that_is_found(tmp_path):
    held = tuple(part[:32] for part in table_data())
    result = esper.grow(
        mlp, Augmented(), held, held, budget=esper.Budget(host_runs=3), epochs=4, batch_size=8,
        folder=tmp_path, widths=(), device="auto", verbose=False,
    )  # fmt: skip
    assert {(row.how.trainer, row.how.note) for row in runs_of(result.folder)} == {("captured", "")}
