"""The run folder, progress display and event files of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.karn.run_progress import RunProgressSink
from esper.karn.terminal import Terminal
from esper.leyline.telemetry import TelemetryEventType, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.nissa.hub import use_hub
from esper.scripts.train.config import Recording, Train, task_label
from esper.scripts.train.learner_config import TrainPPO
from esper.simic.training.runs.folder import RunFolder
from esper.storage.run_files import EVENTS
from esper.tasks.spec import TaskSpec


def open_run_folder(config: Train | TrainPPO, name: str, spec: TaskSpec) -> RunFolder:
    """Create the run folder, or open the one to resume."""
    if config.resume is not None:
        return RunFolder.open(config.resume)
    training = config.training
    label = task_label(training.task, spec)
    return RunFolder.create(config.runs, name, training, config.session, label)


def note_start(config: Train | TrainPPO, folder: RunFolder, notes: Iterable[str]) -> None:
    """Print where the run starts; a resumed run remembers the settings of this session."""
    if config.resume is None:
        if not config.recording.quiet:
            print(f"run folder: {folder.path}", flush=True)
        return
    folder.save_session_settings(config.session)
    for line in notes:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def show_progress(recording: Recording) -> Iterator[None]:
    """Show the progress of runs unless `recording.quiet`."""
    if recording.quiet:
        yield
        return
    console = Terminal(120)
    steps = (TelemetryEventType.STEP_COMPLETED,)
    with use_hub(TelemetryHub([RunProgressSink(console)], TelemetryLevel.NORMAL, always=steps)):
        yield


@contextmanager
def event_files(recording: Recording, folder: Path) -> Iterator[TelemetryHub]:
    """A hub that writes events to `folder` as JSON lines and Parquet."""
    sinks = JsonlSink(folder / EVENTS), ParquetSink(folder)
    with TelemetryHub.from_config(sinks, recording.config) as hub:
        yield hub
