"""Judges the baselines in a second process while this one trains or judges the controller.

They do not depend on the controller, so a machine with a spare core need not wait for them. The
results are those of this process, bit for bit: the same threads of torch, a CPU, the same settings.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Final, Self

import torch

from esper.compare.judging import PolicyRun, judge_baselines
from esper.device.threads import cores
from esper.jobs.messages import Died, Failed, Finished
from esper.jobs.processes import ProcessWorkers
from esper.jobs.worker import Reporter
from esper.leyline.errors import EsperError
from esper.simic.distributed.environment import world_size
from esper.simic.training.config import TrainingConfig
from esper.tolaria.runtime import parse_device

START_AFTER: Final = 10.0
"""Seconds after which the process starts: shorter runs end before it has imported torch."""
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_WORKER: Final = 0
_JOB: Final = "baselines"


@dataclass(frozen=True, slots=True)
class _BaselineJudge:
    """Judges the baselines; the worker of the second process."""

    training: TrainingConfig
    members: int
    data_dir: Path | None

    def do(self, job: str, reporter: Reporter) -> dict[str, PolicyRun]:
        """Judge all of them."""
        with suppress(OSError):
            _OOM_SCORE.write_text("1000")  # where memory is short, this process goes first
        spec = self.training.task.spec()
        return judge_baselines(self.training, spec, spec.load(self.data_dir), self.members)


class BaselineProcess:
    """Context manager of the second process.

    with BaselineProcess(training, members, data_dir) as process:
        ...
        judge(..., baselines=process.result)
    """

    def __init__(
        self,
        training: TrainingConfig,
        members: int,
        data_dir: Path | None,
        after: float | None = None,
    ) -> None:
        """`after`: seconds until the process starts; default: `START_AFTER`."""
        make = partial(_BaselineJudge, training, members, data_dir)
        self._workers = ProcessWorkers(make, 1, torch.get_num_threads())
        self._timer = Timer(START_AFTER if after is None else after, self._start)
        self._timer.daemon = True
        self._wanted = _has_second_process(training)
        self._started = False
        self._problem = ""

    def __enter__(self) -> Self:
        if self._wanted:
            self._timer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._settle()
        self._workers.close()

    def _start(self) -> None:
        try:
            self._workers.start(_WORKER)
        except OSError as error:  # no memory, too many processes, or it died while it started
            self._problem = f"no process can be started ({error})"
            return
        self._workers.assign(_WORKER, _JOB)
        self._started = True

    def _settle(self) -> None:
        """After it, the process has started, or never will."""
        if self._wanted:
            self._timer.cancel()
            self._timer.join()

    def result(self) -> dict[str, PolicyRun] | None:
        """Wait for the runs of the baselines; None if they have to be made here."""
        self._settle()
        while self._started:
            for _, message in self._workers.receive():
                if isinstance(message, Finished):
                    runs: dict[str, PolicyRun] = message.result
                    return runs
                if isinstance(message, Failed):
                    raise (EsperError if message.refused else RuntimeError)(message.text)
                if isinstance(message, Died):
                    self._started, self._problem = False, message.reason
        if self._problem:
            print(f"judging the baselines here: {self._problem}", file=sys.stderr)
        return None


def _has_second_process(training: TrainingConfig) -> bool:
    """Whether a process of as many threads gets cores of its own."""
    device = parse_device(training.population.device)
    spare = 2 * torch.get_num_threads() <= cores()
    return device.type == "cpu" and world_size() == 1 and spare
