"""Resuming a run: find its newest valid checkpoint, check settings and task, load it.

`MAY_CHANGE` lists the settings that may differ, and a task file may have moved; any other
difference raises and is named. Newer checkpoints that cannot be read are moved aside, so that a
later resume does not pick them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError, shorten, shown
from esper.leyline.payloads import CheckpointLoaded
from esper.simic.client import policy_spec
from esper.simic.training.runs.checkpoint_store import CheckpointSearch, CheckpointStore
from esper.simic.training.runs.checkpoints import (
    Checkpoint,
    emit_checkpoint_event,
    read_checkpoint,
    task_facts,
)
from esper.simic.training.runs.folder import checkpoints_dir, read_info
from esper.simic.training.runs.sources import require_user_file
from esper.storage.provenance import versions
from esper.storage.run_files import CONFIG
from esper.storage.sealed_json import MAX_VALUE_CHARS, Difference, differences
from esper.tasks.task_files import is_file_reference, split_reference, task_file_digest

if TYPE_CHECKING:
    from pathlib import Path

    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.runs.folder import RunFolder
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
    from esper.tasks.spec import TaskSpec

MAY_CHANGE: Final = (
    # length
    "rounds",
    # PPO
    "updates_per_rollout",
    "use_amp",
    "cut_stragglers",
    "ppo.learning_rate",
    "ppo.epochs",
    "ppo.minibatches",
    "ppo.clip",
    "ppo.value_clip",
    "ppo.value_coef",
    "ppo.entropy",
    "ppo.head_entropy",
    "ppo.exploration",
    "ppo.max_grad_norm",
    "ppo.target_kl",
    "ppo.gae_lambda",
    # compute
    "population.device",
    "population.profile",
    "population.executor",
    "population.precision",
    "population.kernels",
    "population.graphs",
    "population.data_placement",
)
"""Settings, or sections, that may change when a run is resumed. The rest define the experiment:
task, population, network, reward, seed."""


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """A resumed run."""

    trainer: VectorizedPPOTrainer
    """Ready to `run`; its history holds all rounds so far."""
    checkpoint: Path | None
    """The checkpoint it resumed from; None: the run had none and starts over."""
    changed: tuple[str, ...]
    """Changed settings and an edited task file, relative to the checkpoint or the last session."""
    notes: tuple[str, ...]
    """Warnings to print, one line each: damaged checkpoints, other package versions."""

    @property
    def line(self) -> str:
        """One-line summary of where the run resumes."""
        done, rounds = self.trainer.engine.round, self.trainer.rounds
        start = self.checkpoint or "no checkpoint yet, starting from round 0"
        return f"resume: {done} of {rounds} rounds are done ({start})"


@dataclass(frozen=True, slots=True, eq=False)
class ResumePoint:
    """The checkpoint a run would resume from; finding it builds and writes nothing."""

    found: CheckpointSearch
    """The newest valid checkpoint, and errors of newer ones."""
    checkpoint: Checkpoint | None
    """Its content; None if there is none."""
    changed: tuple[str, ...]
    """See `Resumed.changed`."""

    @property
    def rounds_done(self) -> int:
        """Rounds completed."""
        return 0 if self.checkpoint is None else self.checkpoint.summary.round


def find_resume_point(path: Path, before: TrainingConfig, config: TrainingConfig) -> ResumePoint:
    """Find where the run in `path` resumes; raises if `config` changes what must not change.

    `before`: settings of the last session.
    """
    changes = _changes(before, config, "the run")
    _require_same_reward_file(path, config)
    found = CheckpointStore(checkpoints_dir(path)).newest_valid()
    if found.path is None and found.skipped:
        raise EsperError(
            f"{path}: none of its {len(found.skipped)} checkpoints is valid "
            f"({found.skipped[0]}): start a new run"
        )
    checkpoint = None if found.path is None else read_checkpoint(found.path)
    if checkpoint is not None:  # its rounds were trained with its own settings
        changes |= _changes(checkpoint.config, config, str(checkpoint.path))
    lines = [str(changes[name]) for name in sorted(changes)]
    start = ResumePoint(found, checkpoint, (*lines, *task_file_change(path, config)))
    require_rounds(path, config.rounds, start.rounds_done)
    return start


def require_rounds(path: Path, rounds: int, done: int) -> None:
    """Raise if a run is to have fewer rounds than it has."""
    if rounds < done:
        raise EsperError(f"rounds={rounds}: {path} already has {done} rounds; use {done} or more")


def restore(
    trainer: VectorizedPPOTrainer, folder: RunFolder, start: ResumePoint, config: TrainingConfig
) -> Resumed:
    """Load the checkpoint into a fresh trainer and move newer, damaged checkpoints aside."""
    if start.checkpoint is not None:
        _load_checkpoint(trainer, start.checkpoint, config)
    path, store = start.found.path, CheckpointStore(checkpoints_dir(folder.path))
    aside = [] if path is None else store.move_newer_aside(path)
    notes = (
        *(f"{line}; falling back to {path}" for line in start.found.skipped),
        *(f"{one} could not be read and was moved aside: the run ignores it" for one in aside),
        *_missing_config_note(folder.path, path),
        *version_notes(folder),
    )
    return Resumed(trainer, path, start.changed, notes)


def _load_checkpoint(
    trainer: VectorizedPPOTrainer, checkpoint: Checkpoint, config: TrainingConfig
) -> None:
    """Load a checkpoint into a fresh trainer; raises on a mismatch."""
    engine = trainer.engine
    check_task_facts(checkpoint.task, engine.spec, str(checkpoint.path))
    trainer.load_engine_state(checkpoint.engine)
    expected = policy_spec(engine.spec.context.restarts)
    agent = checkpoint.load_agent(engine.device, expected, config.ppo)
    config.population.configure_graphs(agent)
    agent.ranks = trainer.client.agent.ranks
    trainer.client.agent = agent
    trainer.history[:] = checkpoint.load_history()


def emit_resumed(resumed: Resumed) -> None:
    """Emit `CheckpointLoaded` to the trainer's telemetry listeners."""
    if resumed.checkpoint is not None:
        loaded = CheckpointLoaded(str(resumed.checkpoint), resumed.trainer.engine.round)
        emit_checkpoint_event(resumed.trainer, loaded)


# ---- what may change ----------------------------------------------------------------------------


def check_changes(before: TrainingConfig, now: TrainingConfig) -> tuple[str, ...]:
    """Return the changed settings as lines; raises for one that must not change."""
    return tuple(map(str, _changes(before, now, "the run").values()))


def _changes(before: TrainingConfig, now: TrainingConfig, where: str) -> dict[str, Difference]:
    """Changed settings by name; see `check_changes`."""
    found = [*differences(to_json(before), to_json(now))]
    refused = [change for change in found if not _may_change(change)]
    if refused:
        raise _mismatch(where, refused)
    return {change.name: change for change in found}


def check_task_facts(facts: Json, spec: TaskSpec, where: str) -> None:
    """Raise if `spec` differs from the saved task facts of `where`."""
    found = [
        change
        for change in differences(facts, task_facts(spec), "task")
        if change.now is not None or _ALWAYS.get(change.name, _NEVER) != change.before
    ]
    if found:
        raise _mismatch(where, found)


_ALWAYS: Final[dict[str, Json]] = {
    "task.upkeep.life_steps": 14,
    "task.upkeep.full_share": 1.0,
    "task.host_factory.width": 32,
    "task.host_factory.heads": 4,
    "task.host_factory.layers": 2,
    "task.host_factory.blocks_per_stage": 1,
    "task.host_factory.norm": "group",
}
"""What earlier runs have as settings of their tasks -> the value that all runs have now."""
_NEVER: Final = object()


def _may_change(change: Difference) -> bool:
    if change.name in ("task.name", "reward.own"):  # moved files; others compare their contents
        before, now = str(change.before), str(change.now)
        same = change.name == "task.name" or split_reference(before)[1] == split_reference(now)[1]
        return same and is_file_reference(before) and is_file_reference(now)
    return any(change.name == free or change.name.startswith(f"{free}.") for free in MAY_CHANGE)


def _mismatch(where: str, found: Sequence[Difference]) -> EsperError:
    listed = "; ".join(it.refusal for it in found)
    return EsperError(
        f"resume of {where}: {listed}: resume with the same values, or start a new run "
        f"(docs/runs.md lists what may change)"
    )


def _missing_config_note(folder: Path, checkpoint: Path | None) -> tuple[str, ...]:
    """A line naming the source of the settings if the run's config file is missing."""
    if (folder / CONFIG).exists():
        return ()
    return (f"{folder / CONFIG} is missing: the settings are those of {checkpoint}",)


def task_file_change(path: Path, config: TrainingConfig) -> tuple[str, ...]:
    """A line if the task file changed since the last session."""
    digests = [session.task_file for session in read_info(path).sessions if session.task_file]
    now = task_file_digest(config.task.name)
    if not digests or not now or digests[-1] == now:
        return ()
    name = shorten(config.task.name, MAX_VALUE_CHARS)
    return (f"task file {name} changed: SHA-256 {digests[-1][:12]}... -> {now[:12]}...",)


def _require_same_reward_file(path: Path, config: TrainingConfig) -> None:
    """Raise if the file of the user's reward is gone, or another than the run was trained with."""
    own = config.reward.own
    require_user_file(path, own, "reward")
    digests = [session.reward_file for session in read_info(path).sessions if session.reward_file]
    if digests and digests[-1] != task_file_digest(own):
        raise EsperError(
            f"resume of {path}: the file of reward {shown(own)} has changed: put it back, or start "
            f"a new run"
        )


def version_notes(folder: RunFolder) -> tuple[str, ...]:
    """One line per package whose version changed: results may not be bit-identical."""
    if not folder.info.sessions:
        return ()
    before = dict(folder.info.sessions[-1].versions)
    return tuple(
        f"{name} was {before[name]}, is now {now}: results may not be bit-identical"
        for name, now in versions()
        if before.get(name, now) != now
    )
