"""TensorBoard: event files in the run folder, a scalar per figure.

TensorBoard's own writer, without torch.utils.tensorboard, whose import takes seconds. Its scalars
are float32.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from esper.leyline.payloads import RunStatus
from esper.nissa.trackers.protocol import TrackedRun, TrackerState

FOLDER: Final = "tensorboard"


class _TensorBoardFiles:
    """Writes event files."""

    def __init__(self, run: TrackedRun, before: TrackerState) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._files = EventFileWriter(str(run.folder / FOLDER))
        self.state = TrackerState(FOLDER, "", min(before.last_step, run.first_step - 1))
        if before.last_step >= run.first_step:
            # The run went back to a checkpoint: readers drop what they have from this step on.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(step=run.first_step, session_log=start)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures to the file."""
        kind = self._summary.Value
        values = [kind(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(step=step, summary=self._summary(value=values))
        self._files.flush()

    def close(self, status: RunStatus) -> None:
        """Close the file."""
        self._files.close()

    def _add(self, **content: Any) -> None:
        self._files.add_event(self._event(wall_time=time.time(), **content))


open_tracker = _TensorBoardFiles
