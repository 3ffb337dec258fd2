"""How does a run end up in its folder, however it ends? Rounds, checkpoints and signals together.

with RunFolder.create(root, name, config) as folder:
    train_in_folder(make_trainer(config), folder)

with RunFolder.open(path) as folder:
    train_in_folder(resume_trainer(folder).trainer, folder)
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from esper.leyline.errors import EsperError
from esper.leyline.payloads import CheckpointReason
from esper.simic.telemetry.listener import ListenerGroup
from esper.simic.training.runs.checkpoint_store import CheckpointStore
from esper.simic.training.runs.checkpoints import CheckpointHook
from esper.simic.training.runs.folder import Retention, SessionEnd, one_line, read_retention
from esper.simic.training.runs.interrupts import Interrupted, Interrupts

if TYPE_CHECKING:
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.runs.folder import RunFolder
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer


def train_in_folder(
    trainer: VectorizedPPOTrainer,
    folder: RunFolder,
    every: int | None = None,
    keep: int | None = None,
) -> list[RoundRecord]:
    """Train until all rounds are done, saving on the way; a record of each round.

    `every`, `keep`: rounds between checkpoints, and how many stay besides the best; as in the
    session before where not given. Listeners are given to the trainer before. A run that was asked
    to stop raises `Interrupted` once it is saved. Where saving fails, the run ends with that error:
    going on would be training that nobody keeps.
    """
    before = read_retention(folder.path)
    retention = Retention(
        before.every if every is None else every, before.keep if keep is None else keep
    )
    store = CheckpointStore(folder.checkpoints, retention.keep)
    hook = CheckpointHook(store, folder.config, retention.every)
    folder.note_retention(retention)
    with Interrupts() as interrupts:
        hooks, listener = trainer.hooks, trainer.engine.listener
        trainer.hooks = (hook, *hooks, interrupts)
        heard = [] if listener is None else [listener]
        trainer.engine.listener = ListenerGroup([*heard, interrupts])
        try:
            history = trainer.run()
            interrupts.check()
        except Interrupted as asked:
            hook.flush(trainer, CheckpointReason.INTERRUPTED)
            folder.end(_end(trainer))
            raise Interrupted(_told(asked, trainer, folder)) from None
        except BaseException as error:
            _save_what_there_is(hook, trainer, folder, error)
            raise
        finally:
            trainer.hooks, trainer.engine.listener = hooks, listener
    folder.end(SessionEnd.FINISHED)
    return history


def _end(trainer: VectorizedPPOTrainer) -> SessionEnd:
    done = trainer.engine.round >= trainer.rounds
    return SessionEnd.FINISHED if done else SessionEnd.INTERRUPTED


def _save_what_there_is(
    hook: CheckpointHook, trainer: VectorizedPPOTrainer, folder: RunFolder, error: BaseException
) -> None:
    """Behind an error: the last whole round, if it can be; the error is what is told."""
    with contextlib.suppress(EsperError):
        hook.flush(trainer, CheckpointReason.INTERRUPTED)
    with contextlib.suppress(EsperError):
        failed = isinstance(error, Exception)
        end = SessionEnd.FAILED if failed else SessionEnd.INTERRUPTED
        folder.end(end, one_line(error) if failed else "")


def _told(asked: Interrupted, trainer: VectorizedPPOTrainer, folder: RunFolder) -> str:
    done, rounds = trainer.engine.round, trainer.rounds
    if done >= rounds:
        return f"stopped by {asked}: all {rounds} rounds are done and saved in {folder.path}"
    found = CheckpointStore(folder.checkpoints).paths()
    kept = f"{found[-1].name} is saved" if found else "no round was complete"
    return f"stopped by {asked}: {kept}; go on with --resume {folder.path}"
