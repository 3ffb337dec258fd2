"""One session of a run in its folder: checkpoints, resume, and a clean end whatever ends it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError
from esper.leyline.payloads import CheckpointReason
from esper.simic.telemetry.listener import RunTally
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import CheckpointHook, tally_of
from esper.simic.training.runs.folder import Retention, SessionEnd, one_line, read_retention
from esper.simic.training.runs.interrupts import Interrupted, Interrupts
from esper.simic.training.runs.resume import Resumed, announce, find_start, restore

if TYPE_CHECKING:
    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.runs.folder import RunFolder
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer


class FolderSession:
    """Trains a run in its folder, from its newest checkpoint if it is resumed.

    session = FolderSession(folder, config, resume=True)
    trainer = ...             with `session.checkpoints` and `session.interrupts` among its hooks,
                              `session.interrupts` among its listeners
    session.begin(trainer)
    history = session.run(trainer)
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainingConfig,
        resume: bool = False,
        every: int | None = None,
        keep: int | None = None,
    ) -> None:
        """`every`, `keep`: of checkpoints; None takes the values of the session before."""
        before = read_retention(folder.path)
        self._retention = Retention(
            before.every if every is None else every, before.keep if keep is None else keep
        )
        self._folder, self._config = folder, config
        self._start = find_start(folder.path, folder.config, config) if resume else None
        store = CheckpointStore(folder.checkpoints, self._retention.keep)
        self.checkpoints = CheckpointHook(store, config, self._retention.every)
        self.interrupts = Interrupts()
        self._resumed: Resumed | None = None

    @property
    def tally(self) -> RunTally:
        """How far the run is before this session."""
        checkpoint = None if self._start is None else self._start.checkpoint
        return tally_of([] if checkpoint is None else checkpoint.load_history())

    def begin(self, trainer: VectorizedPPOTrainer) -> Resumed | None:
        """Restore the trainer if the run is resumed, and record the session in the folder."""
        folder, start = self._folder, self._start
        if start is not None:
            self._resumed = restore(trainer, folder, start, self._config)
            folder.begin(self._config, start.done, start.changed)
        folder.mark_used()
        folder.note_retention(self._retention)
        return self._resumed

    def run(self, trainer: VectorizedPPOTrainer) -> list[RoundRecord]:
        """Train until all rounds are done, saving on the way; the records of all rounds.

        A run that was asked to stop raises `Interrupted` once it is saved. Where saving fails, the
        run ends with that error: training on would be lost work.
        """
        folder = self._folder
        if self._resumed is not None:
            announce(self._resumed)
        with self.interrupts:
            try:
                history = trainer.run()
                self.interrupts.check()
            except Interrupted as asked:
                self.checkpoints.flush(trainer, CheckpointReason.INTERRUPTED)
                done = trainer.engine.round >= trainer.rounds
                folder.end(SessionEnd.FINISHED if done else SessionEnd.INTERRUPTED)
                raise Interrupted(_stopped(asked, trainer, folder)) from None
            except BaseException as error:
                self._save_last_round(trainer, error)
                raise
        folder.end(SessionEnd.FINISHED)
        return history

    def _save_last_round(self, trainer: VectorizedPPOTrainer, error: BaseException) -> None:
        """After an error: save the last whole round if possible; the error is what is reported."""
        with contextlib.suppress(EsperError):
            self.checkpoints.flush(trainer, CheckpointReason.INTERRUPTED)
        with contextlib.suppress(EsperError):
            failed = isinstance(error, Exception)
            end = SessionEnd.FAILED if failed else SessionEnd.INTERRUPTED
            self._folder.end(end, one_line(error) if failed else "")


def _stopped(asked: Interrupted, trainer: VectorizedPPOTrainer, folder: RunFolder) -> str:
    done, rounds = trainer.engine.round, trainer.rounds
    if done >= rounds:
        return f"stopped by {asked}: all {rounds} rounds are done and saved in {folder.path}"
    found = CheckpointStore(folder.checkpoints).paths()
    kept = f"{found[-1].name} is saved" if found else "no round was complete"
    return f"stopped by {asked}: {kept}; resume with --resume {folder.path}"
