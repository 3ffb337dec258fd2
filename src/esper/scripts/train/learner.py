"""`train ppo`: the learner put together with its run folder and telemetry, and judged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from esper.scripts.compare.judging import LEARNED, Judged, judge
from esper.scripts.train.learner_config import TrainPPO
from esper.scripts.train.run import telemetry_of
from esper.simic.training.config import TrainingConfig
from esper.simic.training.folder_run import train_in_folder
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.checkpoints import tally_of
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.resume import Resumed, announce, resume_trainer
from esper.simic.training.vectorized import make_trainer
from esper.storage.atomic import require_writable
from esper.tasks.spec import TaskData, TaskSpec
from esper.tolaria.memory_need import require_memory
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """A run of the learner and its judgement."""

    folder: RunFolder
    training: TrainingConfig
    history: list[RoundRecord]
    judged: Judged


@contextmanager
def learn(config: TrainPPO, spec: TaskSpec) -> Iterator[Learnt]:
    """Train the controller and judge it; its folder is held until the caller is done with it."""
    training, recording = config.training, config.recording
    data = spec.load(config.data_dir)
    flag = "--envs" if config.evaluation_envs is None else "--evaluation-envs"
    device = parse_device(training.population.device)
    require_memory(spec, data, config.judged_members, device, flag)
    if recording.telemetry_dir is not None:
        require_writable(recording.telemetry_dir / "events.jsonl", "--telemetry-dir")
    with _opened(config, spec, data) as (folder, resumed):
        trainer = resumed.trainer
        events = recording.telemetry_dir or folder.telemetry
        tally = tally_of(trainer.history)
        with telemetry_of(
            trainer.engine, LEARNED, training.rounds, recording, events, tally
        ) as telemetry:
            trainer.listen(telemetry.listeners)
            announce(resumed)
            history = train_in_folder(trainer, folder, config.checkpoint_every, config.keep)
        judged = judge(training, trainer.client.agent, spec, data, config.judged_members)
        told = replace(judged.result, telemetry=telemetry.told())
        yield Learnt(folder, training, history, replace(judged, result=told))


@contextmanager
def _opened(
    config: TrainPPO, spec: TaskSpec, data: TaskData
) -> Iterator[tuple[RunFolder, Resumed]]:
    """The folder of the run and its trainer: new, or where it was."""
    if config.resume is not None:
        with RunFolder.open(config.resume) as folder:
            resumed = resume_trainer(folder, config.training, spec=spec, data=data)
            for line in (*resumed.notes, *resumed.changed, resumed.line):
                print(line, file=sys.stderr, flush=True)
            folder.note_session_settings(config.session)
            yield folder, resumed
        return
    trainer = make_trainer(
        config.training, spec=spec, data=data
    )  # what it refuses leaves no folder
    with RunFolder.create(config.runs, config.run_name, config.training, config.session) as folder:
        if not config.recording.quiet:
            print(f"run folder: {folder.path}", flush=True)
        yield folder, Resumed(trainer, None, (), ())
