"""Runs for tests of the captured trainer, and a fake GPU that captures by running again.

The fake keeps to what a graph can do: a replay runs the captured work with the values that its
tensors have now, Python state of the network is as it was at the capture, and every tensor that the
work reads must still be where it was.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.growing.runs import Recipe
from esper.growing.trainers.data import Samples
from esper.growing.trainers.job import Job, Outcome, Running, Trainer
from esper.growing.trainers.task import Task, scalar_loss
from esper.kasmina.tracing import Inputs
from esper.tasks.metrics import make_metric
from esper.tasks.objectives import make_training_loss

CPU = torch.device("cpu")
RECIPE = Recipe("adamw", 0.01, 0.01, 1.0, 16, 40)


def table_data(samples: int = 96, features: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Rows whose class shows in their first columns."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, classes, samples)
    x = generator.standard_normal((samples, features)).astype(np.float32)
    x[np.arange(samples), y] += 2.0
    return torch.tensor(x), torch.tensor(y)


def image_data(samples: int = 96, channels: int = 3, side: int = 8) -> tuple[Tensor, Tensor]:
    """Images whose class shows in one row."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, samples)
    x = generator.standard_normal((samples, channels, side, side)).astype(np.float32)
    x[np.arange(samples), 0, y] += 2.0
    return torch.tensor(x), torch.tensor(y)


def token_data(samples: int = 64, length: int = 16, words: int = 11) -> tuple[Tensor, Tensor]:
    """Sequences that count up; the target is the next word."""
    generator = np.random.default_rng(0)
    begin = generator.integers(0, words, (samples, 1))
    x = (begin + np.arange(length + 1)) % words
    return torch.tensor(x[:, :-1]), torch.tensor(x[:, 1:])


def make_task(
    data: tuple[Tensor, Tensor], outputs: Sequence[int] = (3,), device: torch.device = CPU,
    amp: bool = False, train: Any = None,
) -> Task:  # fmt: skip
    """The first three quarters train."""
    x, y = data
    cut = len(x) * 3 // 4
    loss = make_training_loss(targets=y[:cut], output_shape=outputs)
    metric = make_metric("auto", loss, y[:cut], y[:cut])
    inputs = Inputs.of(nn.Identity(), x[:2])
    samples = Samples([x[:cut]], y[:cut]).to(device) if train is None else train
    val = Samples([x[cut:]], y[cut:]).to(device)
    return Task(inputs, samples, val, scalar_loss(loss), metric, device, amp)


def make_job(
    make: Callable[[], nn.Module], number: int, folder: Path, seed: int | None = None, **recipe: Any
) -> Job:
    """A run whose network is initialised by its seed."""
    seed = number if seed is None else seed

    def build() -> nn.Module:
        with forked_rng(seed):
            return make().train()

    chosen = dataclasses.replace(RECIPE, **recipe)
    return Job(number, build, chosen, seed, folder / f"run{number}.safetensors")


def never(_: Sequence[Running]) -> bool:
    return False


def train_all(trainer: Trainer, jobs: Sequence[Job], tick: Any = never) -> dict[int, Outcome]:
    """Outcomes by number."""
    return {outcome.number: outcome for outcome in trainer.train(iter(jobs), tick)}


def digest(outcome: Outcome) -> tuple[Any, ...]:
    """Everything of an outcome that must be the same, bit for bit."""
    weights = {n: zlib.crc32(v.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
               for n, v in outcome.weights.items()}  # fmt: skip
    curve = tuple((at, repr(loss)) for at, loss in outcome.curve)
    scores = (repr(outcome.score), repr(outcome.loss), outcome.finite, outcome.trained)
    return weights, curve, scores


class Passed:
    """A mark whose work is done."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Rerun:
    """Captured work: it runs again, on Python state as it was at the capture."""

    def __init__(self, work: Callable[[], None], log: list[str]) -> None:
        self._work, self._log = work, log
        self._network: nn.Module = work.__closure__[1].cell_contents.network  # type: ignore[index]
        self._python = _python_state(self._network)

    def replay(self) -> None:
        now = _python_state(self._network)
        _restore(self._network, self._python)
        self._work()
        _restore(self._network, now)
        self._log.append("replay")


def _python_state(network: nn.Module) -> dict[str, dict[str, Any]]:
    kept = ("_parameters", "_buffers", "_modules")
    return {
        name: {k: copy.copy(v) for k, v in vars(part).items() if k not in kept}
        for name, part in network.named_modules()
    }


def _restore(network: nn.Module, state: dict[str, dict[str, Any]]) -> None:
    for name, part in network.named_modules():
        vars(part).update(state[name])


class FakeMachine:
    """A CPU as a machine with lanes; memory is what the test says."""

    def __init__(self, free: int = 2**40) -> None:
        self.log: list[str] = []
        self.lane: int | None = None
        self.memory = free
        self.captures = 0
        self.fail: Callable[[int], None] = lambda capture: None
        """Called before each capture with its number."""

    @contextlib.contextmanager
    def on(self, lane: int | None) -> Iterator[None]:
        before, self.lane = self.lane, lane
        try:
            yield
        finally:
            self.lane = before

    def mark(self) -> Passed:
        return Passed()

    def follow(self, mark: Passed) -> None:
        """Work runs at once."""

    def capture(self, work: Callable[[], None]) -> Rerun:
        self.captures += 1
        self.fail(self.captures)
        self.log.append(f"capture on {self.lane}")
        return Rerun(work, self.log)

    def free(self) -> int:
        return self.memory

    def trim(self) -> None:
        self.log.append("trim")
