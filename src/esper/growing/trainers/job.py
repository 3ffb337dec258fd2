"""What a trainer is given, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from esper.growing.runs import How, Recipe
from esper.leyline.errors import EsperError

OUT_OF_MEMORY: Final = "out of memory"
"""Why most networks that cannot be trained cannot."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One run to train."""

    number: int
    build: Callable[[], nn.Module]
    """Makes the network on the CPU, in training mode, with the weights it starts from."""
    recipe: Recipe
    seed: int
    """Names its random streams: order of the samples, dropout."""
    checkpoint: Path | None = None
    """File of its state under way: continued from there if it exists, removed by the caller. None:
    it is not saved on the way."""
    threads: int = 0
    """Threads that it is trained with on a CPU; 0: as many as the trainer gives to each."""
    judged: bool = True
    """Whether it is judged on the validation part at its end."""
    every: float = 0.0
    """Seconds after which it is judged on the way, again and again; 0: only at its end."""
    urgent: bool = False
    """Whether it ends as early as it can, at the expense of others; `Trainer.prioritises`."""


@dataclass(frozen=True, slots=True)
class Running:
    """Where a run is."""

    number: int
    trained: int
    batches: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of a run."""

    number: int
    trained: int
    """Batches; fewer than its recipe says: it was stopped, or its loss is not finite."""
    finite: bool
    score: float
    """On the validation part; NaN: its outputs are not finite."""
    loss: float
    curve: tuple[tuple[int, float], ...]
    """(batches, training loss)."""
    seconds: float
    """Of training, on the clock."""
    judging: float
    """Seconds that its validation took."""
    how: How
    weights: dict[str, Tensor]
    """State dict, on the CPU; of a run that has not ended: averaged, if `Job.every` asks for it."""
    under_way: bool = False
    """It goes on: another outcome follows."""
    failed: str = ""
    """Why it cannot be trained; the rest then says nothing."""


def failed_outcome(job: Job, device: torch.device, reason: str) -> Outcome:
    """Of a run that cannot be trained."""
    how = How(device=str(device), note=reason)
    return Outcome(job.number, 0, False, math.nan, math.nan, (), 0.0, 0.0, how, {}, failed=reason)


def untrainable(batch_size: int, reason: str) -> EsperError:
    """The user's model cannot be trained: there is nothing to search."""
    return EsperError(
        f"your model cannot be trained with batches of {batch_size}: {reason}; lower batch_size, "
        f"or give a smaller model"
    )


Tick = Callable[[Sequence[Running]], bool]
"""Called several times a second with the runs under way; True: stop."""


class Trainer(Protocol):
    """Trains runs, as many at a time as it can."""

    cores: int
    """Threads that a single run may have on a CPU, instead of as many runs; 1: no choice."""
    at_once: int
    """Runs that train at a time without slowing each other."""
    prioritises: bool
    """Whether an urgent run trains nearly as fast as if it had the device to itself."""

    def train(self, jobs: Iterator[Job], tick: Tick) -> Iterator[Outcome]:
        """Train jobs, which are taken as there is room, and yield them as they end, or are judged
        on the way.

        A network that cannot be trained, such as one that does not fit into memory, is an outcome
        that says so. Once `tick` says stop, those under way are saved to their checkpoints, judged
        as they are and yielded; no further one is taken.
        """
        ...

    def close(self) -> None:
        """End its processes, and free its memory."""
        ...
