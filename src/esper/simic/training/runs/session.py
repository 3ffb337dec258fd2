"""One training session in a run folder: resume, checkpoints, and a recorded end.

`RunSession` is what sessions of all policies share, `FolderSession` that of the learner.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import EsperError
from esper.leyline.payloads import CheckpointReason
from esper.simic.telemetry.listener import RunTally
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import CheckpointHook, completed_rounds, run_tally
from esper.simic.training.runs.folder import (
    Retention,
    SessionEnd,
    checkpoints_dir,
    members_dir,
    read_retention,
)
from esper.simic.training.runs.interrupts import Interrupted, Interrupts
from esper.simic.training.runs.kept_members import KeptMembers
from esper.simic.training.runs.policy_file import LEARNER
from esper.simic.training.runs.resume import Resumed, emit_resumed, find_resume_point, restore
from esper.storage.sessions import one_line, resume_training

if TYPE_CHECKING:
    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.runs.folder import RunFolder
    from esper.simic.training.vectorized_trainer import RoundHook, VectorizedPPOTrainer
    from esper.tolaria.engine import VectorizedEngine


LAST_SECONDS: Final = 10.0
"""After a stop signal, for exports: torchrun kills what has not ended after 30 s."""


class RunSession(ABC):
    """A session in a run folder: it keeps members and settings, and records how it ended."""

    def __init__(self, folder: RunFolder, config: TrainingConfig, retention: Retention) -> None:
        self._folder, self._config, self._retention = folder, config, retention
        self.members = KeptMembers(members_dir(folder.path), retention.members)
        self.interrupts = Interrupts()

    @property
    @abstractmethod
    def _rounds_done(self) -> int:
        """Rounds that are saved, or will be by `_save`; the engine may be further."""

    @abstractmethod
    def _save(self, engine: VectorizedEngine) -> str:
        """Save what is finished and not on disk yet; returns it in words."""

    def _begin(self) -> None:
        """Training begins: from now on the folder stays."""
        self._folder.mark_used()
        self._folder.save_retention(self._retention)

    @contextlib.contextmanager
    def _recorded(
        self, engine: VectorizedEngine, policy: str, processes: int = 1
    ) -> Iterator[None]:
        """Record how the block ends; after a stop signal save first, then raise `Interrupted`.

        `policy`, `processes`: of the command that resumes it.
        """
        folder, rounds = self._folder, self._config.rounds
        with self.interrupts:
            try:
                yield
                self.members.store_plain(engine)
                self.interrupts.check()
            except Interrupted as stopped:
                saved = self._save(engine)
                self.members.store_plain(engine, LAST_SECONDS)
                done = self._rounds_done >= rounds
                folder.end(SessionEnd.FINISHED if done else SessionEnd.INTERRUPTED)
                trust = bool(self._config.user_files)
                command = resume_training(folder.path, policy, trust=trust, ranks=processes)
                how = f"{saved}; resume with: {command}"
                if done:
                    how = f"all {rounds} rounds are done and saved in {folder.path}"
                line = f"stopped by {stopped}: {how}"
                raise Interrupted(line, stopped.signal_name) from None
            except BaseException as error:
                with contextlib.suppress(EsperError):  # the first error is the one to report
                    self._save(engine)
                with contextlib.suppress(EsperError):
                    failed = isinstance(error, Exception)
                    end = SessionEnd.FAILED if failed else SessionEnd.INTERRUPTED
                    folder.end(end, one_line(error) if failed else "")
                raise
        folder.end(SessionEnd.FINISHED)


class FolderSession(RunSession):
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
        retention = Retention(
            before.every if every is None else every,
            before.keep if keep is None else keep,
            before.members if keep_members is None else keep_members,
        )
        super().__init__(folder, config, retention)
        self._start = find_resume_point(folder.path, folder.config, config) if resume else None
        self._store = CheckpointStore(checkpoints_dir(folder.path), retention.keep)
        self.checkpoints = CheckpointHook(self._store, config, retention.every)
        self._trainer: VectorizedPPOTrainer | None = None
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
        self._begin()
        return self._resumed

    def run(self, trainer: VectorizedPPOTrainer) -> list[RoundRecord]:
        """Train all remaining rounds with checkpoints; returns the records of all rounds.

        Raises `Interrupted` after a stop signal, once a checkpoint is saved. A failed save ends the
        run: further training would be lost.
        """
        if self._resumed is not None:
            emit_resumed(self._resumed)
        ranks = trainer.client.agent.ranks
        # Of a job on several machines, only its user knows the command.
        local = ranks.size if ranks.local_size == ranks.size else 1
        self._trainer = trainer
        with self._recorded(trainer.engine, LEARNER, local):
            trainer.run()
        return trainer.history

    @property
    def _rounds_done(self) -> int:
        return 0 if self._trainer is None else len(completed_rounds(self._trainer.history))

    def _save(self, engine: VectorizedEngine) -> str:
        assert self._trainer is not None  # set by `run`
        self.checkpoints.flush(self._trainer, CheckpointReason.INTERRUPTED)
        found = self._store.paths()
        return f"{found[-1].name} is saved" if found else "no round was complete"
