"""One training session in a run folder: resume, checkpoints, and a recorded end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.leyline.payloads import CheckpointReason
from esper.simic.telemetry.listener import RunTally
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import CheckpointHook, run_tally
from esper.simic.training.runs.folder import Retention, SessionEnd, members_dir, read_retention
from esper.simic.training.runs.interrupts import Interrupted, Interrupts
from esper.simic.training.runs.kept_members import KeptMembers
from esper.simic.training.runs.resume import Resumed, emit_resumed, find_resume_point, restore
from esper.simic.training.runs.resume_command import resume_command
from esper.storage.sessions import one_line

if TYPE_CHECKING:
    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.runs.folder import RunFolder
    from esper.simic.training.vectorized_trainer import RoundHook, VectorizedPPOTrainer


LAST_SECONDS: Final = 10.0
"""After a stop signal, for exports: torchrun kills what has not ended after 30 s."""


class FolderSession:
    """Trains a run in its folder, starting from its newest checkpoint if `resume`.

    session = FolderSession(folder, config, resume=True)
    trainer = ...             with `session.hooks` among its hooks, `session.interrupts` among its
                              hooks and listeners
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
        keep_members: int | None = None,
    ) -> None:
        """`every`, `keep`, `keep_members`: checkpoint interval and retention; None: those of the
        last session."""
        before = read_retention(folder.path)
        self._retention = Retention(
            before.every if every is None else every,
            before.keep if keep is None else keep,
            before.members if keep_members is None else keep_members,
        )
        self._folder, self._config = folder, config
        self._start = find_resume_point(folder.path, folder.config, config) if resume else None
        store = CheckpointStore(folder.checkpoints, self._retention.keep)
        self.checkpoints = CheckpointHook(store, config, self._retention.every)
        self.members = KeptMembers(members_dir(folder.path), self._retention.members)
        self.interrupts = Interrupts()
        self._resumed: Resumed | None = None

    @property
    def hooks(self) -> tuple[RoundHook, ...]:
        """Save members, then the checkpoint: every saved round then has its members."""
        return self.members, self.checkpoints

    @property
    def tally(self) -> RunTally:
        """Progress of the run before this session."""
        checkpoint = None if self._start is None else self._start.checkpoint
        return run_tally([] if checkpoint is None else checkpoint.load_history())

    def begin(self, trainer: VectorizedPPOTrainer) -> Resumed | None:
        """Restore the trainer if resuming, and record the session in the folder."""
        folder, start = self._folder, self._start
        if start is not None:
            self._resumed = restore(trainer, folder, start, self._config)
            folder.begin(self._config, start.rounds_done, start.changed)
        folder.mark_used()
        folder.save_retention(self._retention)
        return self._resumed

    def run(self, trainer: VectorizedPPOTrainer) -> list[RoundRecord]:
        """Train all remaining rounds with checkpoints; returns the records of all rounds.

        Raises `Interrupted` after a stop signal, once a checkpoint is saved. A failed save ends the
        run: further training would be lost.
        """
        folder = self._folder
        if self._resumed is not None:
            emit_resumed(self._resumed)
        with self.interrupts:
            try:
                history = trainer.run()
                self.members.store_plain(trainer.engine)
                self.interrupts.check()
            except Interrupted as interrupted:
                self.checkpoints.flush(trainer, CheckpointReason.INTERRUPTED)
                self.members.store_plain(trainer.engine, LAST_SECONDS)
                done = trainer.engine.round >= trainer.rounds
                folder.end(SessionEnd.FINISHED if done else SessionEnd.INTERRUPTED)
                raise Interrupted(self._stopped(interrupted, trainer)) from None
            except BaseException as error:
                self._save_last_round(trainer, error)
                raise
        folder.end(SessionEnd.FINISHED)
        return history

    def _save_last_round(self, trainer: VectorizedPPOTrainer, error: BaseException) -> None:
        """After an exception: save the last completed round if possible, and record the failure."""
        with contextlib.suppress(EsperError):
            self.checkpoints.flush(trainer, CheckpointReason.INTERRUPTED)
        with contextlib.suppress(EsperError):
            failed = isinstance(error, Exception)
            end = SessionEnd.FAILED if failed else SessionEnd.INTERRUPTED
            self._folder.end(end, one_line(error) if failed else "")

    def _stopped(self, stopped: Interrupted, trainer: VectorizedPPOTrainer) -> str:
        done, rounds, folder = trainer.engine.round, trainer.rounds, self._folder
        if done >= rounds:
            return f"stopped by {stopped}: all {rounds} rounds are done and saved in {folder.path}"
        found = CheckpointStore(folder.checkpoints).paths()
        saved = f"{found[-1].name} is saved" if found else "no round was complete"
        ranks = trainer.client.agent.ranks
        # Of a job on several machines, only its user knows the command.
        local = ranks.size if ranks.local_size == ranks.size else 1
        command = resume_command(folder.path, self._config.task.name, ranks=local)
        return f"stopped by {stopped}: {saved}; resume with: {command}"
