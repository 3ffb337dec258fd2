"""Runs `esper train ppo`: training in a run folder with telemetry, then evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from esper.compare.baseline_process import BaselineProcess
from esper.compare.judging import Judged, judge
from esper.karn.heartbeat import current_phase
from esper.scripts.train.learner_config import TrainPPO
from esper.scripts.train.recording import (
    event_files,
    note_start,
    open_run_folder,
    show_progress,
)
from esper.simic.distributed.ranks import SINGLE_PROCESS
from esper.simic.distributed.world import World
from esper.simic.training.history import RoundRecord
from esper.simic.training.runs.folder import RunFolder
from esper.simic.training.runs.resume import Resumed
from esper.simic.training.vectorized import train_ppo_vectorized
from esper.storage.atomic import require_writable
from esper.storage.live import LiveFile, LiveRecord
from esper.storage.run_files import EVENTS
from esper.tasks.spec import TaskSpec
from esper.tasks.task_data import TaskData
from esper.tolaria.memory_check import require_memory
from esper.tolaria.runtime import parse_device


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """A finished training run and its evaluation."""

    folder: RunFolder
    history: list[RoundRecord]
    judged: Judged


@contextmanager
def learn(
    config: TrainPPO,
    spec: TaskSpec,
    data: TaskData,
    world: World | None = None,
    on_folder: Callable[[Path], None] | None = None,
) -> Iterator[Learnt]:
    """Train the controller and evaluate it; the run folder stays locked inside the block.

    `world`: the processes that train together; this is rank 0, which leaves them to evaluate.
    `on_folder`: called with the path of the run folder before training.
    """
    training, recording = config.training, config.recording
    flag = "--envs" if config.evaluation_envs is None else "--evaluation-envs"
    device = parse_device(training.population.device)
    require_memory(spec, data, config.judged_members, device, flag)
    if recording.telemetry_dir is not None:
        require_writable(recording.telemetry_dir / EVENTS, "--telemetry-dir")
    with (
        open_run_folder(config, config.run_name, spec) as folder,
        BaselineProcess(training, config.judged_members, config.data_dir) as process,
    ):
        if on_folder is not None:
            on_folder(folder.path)
        events = recording.telemetry_dir or folder.path
        with show_progress(recording), event_files(recording, events) as hub:
            agent, history = train_ppo_vectorized(
                training,
                run_dir=folder,
                resume=config.resume is not None,
                sinks=hub,
                telemetry=recording.config,
                checkpoint_every=config.checkpoint_every,
                keep=config.keep,
                keep_members=config.keep_members,
                on_begin=lambda resumed: note_start(config, folder, _notes(resumed)),
                track=recording.track,
                spec=spec,
                data=data,
                world=world,
            )
        if world is not None:
            world.leave()
            agent.ranks = SINGLE_PROCESS
        with LiveFile(folder.path, lambda: LiveRecord(current_phase() or "judging")):
            judged = judge(training, agent, spec, data, config.judged_members, process.result)
        result = replace(judged.result, telemetry=f"{hub.report()} ({events})")
        yield Learnt(folder, history, replace(judged, result=result))


def _notes(resumed: Resumed | None) -> tuple[str, ...]:
    return () if resumed is None else (*resumed.notes, *resumed.changed, resumed.line)
