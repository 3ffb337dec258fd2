"""Progress display and event files of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.karn.run_progress import RunProgressSink
from esper.karn.terminal import Terminal
from esper.leyline.protocols import SinkProtocol
from esper.leyline.telemetry import TelemetryEventType, TelemetryLevel
from esper.nissa import JsonlSink, ParquetSink, TelemetryHub
from esper.nissa.hub import use_hub
from esper.scripts.train.config import Recording
from esper.storage.run_files import EVENTS


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
def event_files(recording: Recording, folder: Path | None) -> Iterator[TelemetryHub]:
    """A hub that writes events to `folder` as JSON lines and Parquet; None: no files."""
    sinks: list[SinkProtocol] = []
    if folder is not None:
        sinks = [JsonlSink(folder / EVENTS), ParquetSink(folder)]
    with TelemetryHub.from_config(sinks, recording.config) as hub:
        yield hub
