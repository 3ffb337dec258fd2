"""After the choice: the pick and the user's model once more, on training and validation samples.

The same network, start and recipe, for as many epochs. Validation cannot judge what it has trained:
weights that have learnt less than those of the search are dropped. Both are taken or neither, as
they are compared.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from esper.growing.clock import Clock
from esper.growing.folder import GrowFolder
from esper.growing.networks import Networks
from esper.growing.progress import ProgressPrinter
from esper.growing.ranks import noted
from esper.growing.runs import Recipe, Row
from esper.growing.trainers.data import Samples
from esper.growing.trainers.in_process import process_trainer
from esper.growing.trainers.job import Job, Outcome, Running, Tick
from esper.growing.trainers.task import Task
from esper.leyline.user_errors import format_error

_log: Final = logging.getLogger(__name__)
MAX_SHARE: Final = 0.15
"""Share of the time that it may take; where it would take more, there is none."""
SLACK: Final = 1.1
"""Seconds that are kept for it, over those that it should take."""
PROGRESS: Final = 0.8
"""Share of the loss that the search's run has lost, which its refit has to lose as well."""


class Refit:
    """Trains networks of a search on all samples but those of test."""

    def __init__(
        self,
        task: Task,
        networks: Networks,
        clock: Clock,
        folder: GrowFolder,
        printer: ProgressPrinter,
    ) -> None:
        assert isinstance(task.train, Samples), "a stream is not refitted"
        self._task, self._networks, self._clock = task, networks, clock
        self._folder, self._printer = folder, printer
        self._growth = 1.0 + len(task.val) / len(task.train)
        self._stopped = False

    def seconds(self, rows: Sequence[Row]) -> float:
        """Time to keep for the longest of some runs and the user's model; 0: too much for it."""
        if not rows:
            return 0.0
        base = [row for row in rows if row.origin == "given"]
        seconds = self._clock.whole_run
        longest = max(map(seconds, rows)) + max(map(seconds, base), default=0.0)
        needed = SLACK * self._growth * longest
        return needed if needed <= MAX_SHARE * self._clock.limit else 0.0

    def weights(self, rows: Sequence[Row], all_rows: Sequence[Row]) -> dict[int, dict[str, Tensor]]:
        """By number the new weights of some finished runs: of all of them, or of none.

        They are compared with each other, so none may have had more samples.
        """
        kept = {row.number: self._folder.read_refit(row.number) for row in rows}
        found = {number: weights for number, weights in kept.items() if weights is not None}
        missing = [row for row in rows if row.number not in found]
        needed = self._growth * sum(map(self._clock.whole_run, missing))
        if not missing:
            return found
        if needed > self._clock.left + self._clock.reserved:
            return {}
        self._printer.phase("refit on training and validation samples")
        taken: dict[int, dict[str, Tensor]] = {}
        with costs_nothing(self._printer.say):
            lack = self._train(missing, all_rows, found)
            if lack:
                self._printer.say(f"a refit {lack}: the weights of the search are kept")
            else:
                for row in missing:
                    self._folder.save_weights(row.number, found[row.number], refit=True)
                taken = found
        return taken

    def _train(
        self, rows: Sequence[Row], all_rows: Sequence[Row], found: dict[int, dict[str, Tensor]]
    ) -> str:
        """Train runs again; why one of them cannot be taken, empty: all can."""
        by_number = {row.number: row for row in rows}
        outcomes = train_on(self._task, self._samples(), self._jobs(rows, all_rows), self._tick)
        with noted([signal.SIGINT], self._stop), contextlib.closing(outcomes):
            for outcome in outcomes:
                row = by_number.pop(outcome.number)
                if self._stopped:
                    return "was stopped"
                if outcome.failed:
                    return f"failed ({outcome.failed})"
                if outcome.finite and outcome.trained < self._recipe(row).batches:
                    return "ran out of time"
                if not _has_learnt(row, outcome):
                    return "has learnt less"
                found[row.number] = dict(outcome.weights)
        return "ran out of time" if by_number else ""

    def _stop(self) -> None:
        """Ctrl-C: the result of the search is written at once."""
        self._stopped = True

    def _samples(self) -> Samples:
        """Those of training and of validation."""
        train, val = self._task.train, self._task.val
        assert isinstance(train, Samples)
        both = zip(train.values, val.values, strict=True)
        return Samples(
            [torch.cat([one, other.to(one.device)]) for one, other in both],
            torch.cat([train.targets, val.targets.to(train.targets.device)]),
        )

    def _jobs(self, rows: Sequence[Row], all_rows: Sequence[Row]) -> Iterator[Job]:
        build = self._networks.build
        for row in rows:
            yield Job(
                row.number, partial(build, row, all_rows), self._recipe(row), row.seed, judged=False
            )

    def _recipe(self, row: Row) -> Recipe:
        task = self._task
        assert isinstance(task.train, Samples)
        return refit_recipe(row.recipe, len(task.train), len(task.val))

    def _tick(self, running: Sequence[Running]) -> bool:
        if running:
            trained, length = running[0].trained, running[0].batches
            self._printer.phase(f"refit, {trained:,} of {length:,} batches")
        return self._stopped or self._clock.left + self._clock.reserved <= 0


@contextlib.contextmanager
def costs_nothing(say: Callable[[str], None]) -> Iterator[None]:
    """Whatever fails inside the block, a refit, the result of the search is there without it."""
    try:
        yield
    except Exception as error:
        _log.info("a refit failed", exc_info=True)
        say(f"a refit failed ({format_error(error)}): the weights of the search are kept")


def train_on(
    task: Task, samples: Samples, jobs: Iterator[Job], tick: Tick
) -> Generator[Outcome, None, None]:
    """Train runs of a search once more, on other samples."""
    trainer = process_trainer(replace(task, train=samples))
    try:
        yield from trainer.train(jobs, tick)
    finally:
        trainer.close()


def refit_recipe(recipe: Recipe, train: int, val: int) -> Recipe:
    """As many epochs of training and validation samples together."""
    return replace(recipe, batches=max(1, round((1.0 + val / train) * recipe.batches)))


def _has_learnt(row: Row, outcome: Outcome) -> bool:
    """Whether its training loss is about as low in the end as that of the search's run."""
    if not outcome.finite or not outcome.curve or not row.curve:
        return False
    first, last, now = row.curve[0][1], _at_the_end(row.curve), _at_the_end(outcome.curve)
    return now <= last + (1.0 - PROGRESS) * abs(first - last)


def _at_the_end(curve: Sequence[tuple[int, float]]) -> float:
    """Mean loss of the last quarter of a run: a point may be one batch."""
    some = [loss for _, loss in curve[-max(1, len(curve) // 4) :]]
    return sum(some) / len(some)
