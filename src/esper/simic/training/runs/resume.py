"""How does a run go on? The newest whole checkpoint, put into a trainer of the same settings.

What may be changed on the way stands in one table; any other difference is refused by name. Newer
checkpoints that cannot be read are set aside, so that none of them is the newest some other day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError, shorten, shown
from esper.leyline.payloads import CheckpointLoaded
from esper.simic.client import policy_spec
from esper.simic.training.runs.checkpoint_store import CheckpointStore, Found
from esper.simic.training.runs.checkpoints import (
    Checkpoint,
    read_checkpoint,
    task_facts,
    tell,
    with_later_facts,
)
from esper.simic.training.runs.folder import CONFIG, checkpoints_of, read_info
from esper.simic.training.runs.provenance import versions
from esper.tasks.task_files import is_file_reference, task_file_digest

if TYPE_CHECKING:
    from pathlib import Path

    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.runs.folder import RunFolder
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
    from esper.tasks.spec import TaskSpec

MAY_CHANGE: Final = (
    # how long
    "rounds",
    # how the controller learns
    "updates_per_rollout",
    "use_amp",
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
    # where and how it is computed
    "population.device",
    "population.profile",
    "population.executor",
    "population.precision",
    "population.kernels",
    "population.graphs",
    "population.data_placement",
)
"""Settings, or whole groups of them, that a run may be resumed with other values of. The rest says
what is learnt on, by whom, and what for: with another value it would be another run."""


LONGEST_VALUE: Final = 200
"""Characters of a setting's value that are printed and recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """A run that goes on."""

    trainer: VectorizedPPOTrainer
    """Ready for `run`; its history is that of all rounds so far."""
    checkpoint: Path | None
    """What it goes on from; None: the run had none yet, and begins anew."""
    changed: tuple[str, ...]
    """Settings that differ from the checkpoint, or from the session before; a task file that was
    edited since."""
    notes: tuple[str, ...]
    """What people should know, a line each: damaged checkpoints, other versions."""

    @property
    def line(self) -> str:
        """Where it goes on."""
        done, rounds = self.trainer.engine.round, self.trainer.rounds
        start = "no checkpoint yet, begins anew" if self.checkpoint is None else self.checkpoint
        return f"resume: {done} of {rounds} rounds are done ({start})"


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """From where a run would go on; nothing was built or written to find it."""

    found: Found
    """Its newest whole checkpoint, if it has one, and those that are not whole."""
    checkpoint: Checkpoint | None
    """What that holds."""
    changed: tuple[str, ...]
    """As in `Resumed`."""

    @property
    def done(self) -> int:
        """Rounds behind it."""
        return 0 if self.checkpoint is None else self.checkpoint.summary.round


def find_start(path: Path, before: TrainingConfig, config: TrainingConfig) -> Start:
    """From where the run in a folder, set to `before`, would go on with `config`, if it may."""
    changes = _changes(before, config, "the run")
    found = CheckpointStore(checkpoints_of(path)).newest_valid()
    if found.path is None and found.skipped:
        raise EsperError(
            f"{path}: none of its {len(found.skipped)} checkpoints is whole "
            f"({found.skipped[0]}): start a new run"
        )
    checkpoint = None if found.path is None else read_checkpoint(found.path)
    if checkpoint is not None:  # what its rounds were trained with is what counts
        changes |= _changes(checkpoint.config, config, str(checkpoint.path))
    lines = [str(changes[name]) for name in sorted(changes)]
    start = Start(found, checkpoint, (*lines, *_edited_task_file(path, config)))
    if config.rounds < start.done:
        raise EsperError(
            f"rounds={config.rounds}: {path} has {start.done} rounds behind it; ask for "
            f"{start.done} or more"
        )
    return start


def restore(
    trainer: VectorizedPPOTrainer, folder: RunFolder, start: Start, config: TrainingConfig
) -> Resumed:
    """Put the run in `folder` into a fresh trainer; newer checkpoints that are damaged go aside."""
    if start.checkpoint is not None:
        put_into(trainer, start.checkpoint, config)
    skipped, path = start.found.skipped, start.found.path
    store = CheckpointStore(folder.checkpoints)
    aside = [] if path is None else store.set_aside_newer(path)
    notes = (
        *_skipped(skipped, path),
        *_kept(aside),
        *_without_config(folder.path, path),
        *_other_versions(folder),
    )
    return Resumed(trainer, path, start.changed, notes)


def put_into(trainer: VectorizedPPOTrainer, checkpoint: Checkpoint, config: TrainingConfig) -> None:
    """Set a fresh trainer to the state of a checkpoint; what does not fit is refused by name."""
    engine = trainer.engine
    check_task(checkpoint, engine.spec)
    engine.load_state_dict(checkpoint.engine)
    spec = policy_spec(engine.env.model.blueprints)
    agent = checkpoint.load_agent(engine.device, spec, config.ppo)
    config.population.choose_graphs(agent)
    trainer.client.agent = agent
    trainer.history[:] = checkpoint.load_history()


def announce(resumed: Resumed) -> None:
    """Make an event of it, once the trainer's listeners are there."""
    if resumed.checkpoint is not None:
        loaded = CheckpointLoaded(str(resumed.checkpoint), resumed.trainer.engine.round)
        tell(resumed.trainer, loaded)


# ---- what may change ----------------------------------------------------------------------------


def check_changes(
    before: TrainingConfig, now: TrainingConfig, where: str = "the run"
) -> tuple[str, ...]:
    """What differs, in words; a difference that would make another run of it is refused.

    `where`: what was set to `before`.
    """
    return tuple(map(str, _changes(before, now, where).values()))


def _changes(before: TrainingConfig, now: TrainingConfig, where: str) -> dict[str, _Difference]:
    """As `check_changes`, by name."""
    found = [*_differences("", to_json(before), to_json(now))]
    refused = [change for change in found if not _may_change(change)]
    if refused:
        raise _mismatch(where, refused)
    return {change.name: change for change in found}


def check_task(checkpoint: Checkpoint, spec: TaskSpec) -> None:
    """Refuse a task that is not the one a checkpoint was trained on, whatever it is called."""
    saved = with_later_facts(checkpoint.task, spec)
    found = [*_differences("task", saved, task_facts(spec))]
    if found:
        raise _mismatch(str(checkpoint.path), found)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A setting with two values."""

    name: str
    """From the top down, joined by dots."""
    before: Json
    now: Json

    def __str__(self) -> str:
        return f"{self.name}: {_value(self.before)} -> {_value(self.now)}"


def _value(value: Json) -> str:
    """As it is printed and recorded."""
    text = str(value)
    return shorten(text if text.isprintable() else repr(text), LONGEST_VALUE)


def _differences(name: str, before: Json, now: Json) -> Iterator[_Difference]:
    """Where two documents differ; lists are one value each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(inner, before.get(key), now.get(key))
    elif before != now:
        yield _Difference(name, before, now)


def _may_change(change: _Difference) -> bool:
    if change.name == "task.name":  # a file may be moved; what it says of the task is compared
        return is_file_reference(str(change.before)) and is_file_reference(str(change.now))
    return any(change.name == free or change.name.startswith(f"{free}.") for free in MAY_CHANGE)


def _mismatch(where: str, found: Sequence[_Difference]) -> EsperError:
    listed = "; ".join(
        f"{it.name} is {shown(it.before, LONGEST_VALUE)} there and "
        f"{shown(it.now, LONGEST_VALUE)} here"
        for it in found
    )
    return EsperError(
        f"resume of {where}: {listed}: go on with the same, or start a new run (docs/runs.md lists "
        f"what may change)"
    )


def _skipped(skipped: Sequence[str], path: Path | None) -> tuple[str, ...]:
    return tuple(f"{line}; falling back to {path}" for line in skipped)


def _kept(aside: Sequence[Path]) -> tuple[str, ...]:
    """Where checkpoints are that the run goes on without."""
    return tuple(
        f"{path} is what could not be read: the run never takes it again" for path in aside
    )


def _without_config(folder: Path, checkpoint: Path | None) -> tuple[str, ...]:
    """Where the settings come from if the run's own file is gone."""
    if (folder / CONFIG).exists():
        return ()
    return (f"{folder / CONFIG} is missing: the settings are those of {checkpoint}",)


def _edited_task_file(path: Path, config: TrainingConfig) -> tuple[str, ...]:
    """Whether the file of the run's task is another one than in the session before."""
    digests = [session.task_file for session in read_info(path).sessions if session.task_file]
    now = task_file_digest(config.task.name)
    if not digests or not now or digests[-1] == now:
        return ()
    name = shorten(config.task.name, LONGEST_VALUE)
    return (f"task file {name} changed: SHA-256 {digests[-1][:12]}... -> {now[:12]}...",)


def _other_versions(folder: RunFolder) -> tuple[str, ...]:
    """Packages that changed since the session before: bit for bit is not promised across them."""
    if not folder.info.sessions:
        return ()
    before = dict(folder.info.sessions[-1].versions)
    return tuple(
        f"{name} is {now} here and was {before[name]} before: figures may differ in the last bits"
        for name, now in versions()
        if before.get(name, now) != now
    )
