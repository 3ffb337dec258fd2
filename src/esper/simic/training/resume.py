"""How does a run go on? The newest whole checkpoint, put into a trainer of the same settings.

What may be changed on the way stands in one table; any other difference is refused by name. Newer
checkpoints that cannot be read are set aside, so that none of them is the newest some other day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from esper.leyline.codec import Json, to_json
from esper.leyline.errors import EsperError
from esper.leyline.payloads import CheckpointLoaded
from esper.simic.client import policy_spec
from esper.simic.training.checkpoint_files import CheckpointStore, Found
from esper.simic.training.checkpoints import (
    Checkpoint,
    read_checkpoint,
    task_facts,
    tell,
    with_later_facts,
)
from esper.simic.training.run_folder import checkpoints_of, versions
from esper.simic.training.vectorized import make_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from esper.leyline.protocols import EngineListener, RewardProtocol
    from esper.simic.training.config import TrainingConfig
    from esper.simic.training.run_folder import RunFolder
    from esper.simic.training.vectorized_trainer import RoundHook, VectorizedPPOTrainer
    from esper.tasks.spec import TaskData, TaskSpec

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


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """A run that goes on."""

    trainer: VectorizedPPOTrainer
    """Ready for `run`; its history is that of all rounds so far."""
    checkpoint: Path | None
    """What it goes on from; None: the run had none yet, and begins anew."""
    changed: tuple[str, ...]
    """Settings that differ from the session before."""
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
    """Settings that differ from the session before."""

    @property
    def done(self) -> int:
        """Rounds behind it."""
        return 0 if self.checkpoint is None else self.checkpoint.summary.round


def find_start(path: Path, before: TrainingConfig, config: TrainingConfig) -> Start:
    """From where the run in a folder, set to `before`, would go on with `config`, if it may."""
    changed = check_changes(before, config)
    found = CheckpointStore(checkpoints_of(path)).newest_valid()
    if found.path is None and found.skipped:
        raise EsperError(
            f"{path}: none of its {len(found.skipped)} checkpoints is whole "
            f"({found.skipped[0]}): start a new run"
        )
    checkpoint = None if found.path is None else read_checkpoint(found.path)
    if checkpoint is not None:
        check_changes(checkpoint.config, config, str(checkpoint.path))
    start = Start(found, checkpoint, changed)
    if config.rounds < start.done:
        raise EsperError(
            f"rounds={config.rounds}: {path} has {start.done} rounds behind it; ask for "
            f"{start.done} or more"
        )
    return start


def resume_trainer(
    folder: RunFolder,
    config: TrainingConfig | None = None,
    *,
    reward: RewardProtocol | None = None,
    hooks: Sequence[RoundHook] = (),
    spec: TaskSpec | None = None,
    data: TaskData | None = None,
    listener: EngineListener | None = None,
) -> Resumed:
    """A trainer that goes on where the run in `folder` was last saved; a session begins.

    `config`: what to go on with, the run's own where not given. The others are for `make_trainer`.
    """
    config = config or folder.config
    start = find_start(folder.path, folder.config, config)
    trainer = make_trainer(
        config, reward=reward, hooks=hooks, spec=spec, data=data, listener=listener
    )
    if start.checkpoint is not None:
        put_into(trainer, start.checkpoint, config)
    skipped, path = start.found.skipped, start.found.path
    store = CheckpointStore(folder.checkpoints)
    aside = [] if path is None else store.set_aside_newer(path)
    notes = (*_skipped(skipped, path), *_kept(aside), *_other_versions(folder))
    folder.begin(config, start.done, start.changed)
    return Resumed(trainer, path, start.changed, notes)


def put_into(trainer: VectorizedPPOTrainer, checkpoint: Checkpoint, config: TrainingConfig) -> None:
    """Set a fresh trainer to where a checkpoint was taken; what does not fit is refused by name."""
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
    found = [*_differences("", to_json(before), to_json(now))]
    refused = [change for change in found if not _may_change(change.name)]
    if refused:
        raise _mismatch(where, refused)
    return tuple(f"{change.name}: {change.before} -> {change.now}" for change in found)


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


def _differences(name: str, before: Json, now: Json) -> Iterator[_Difference]:
    """Where two documents differ; lists are one value each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            inner = f"{name}.{key}" if name else key
            yield from _differences(inner, before.get(key), now.get(key))
    elif before != now:
        yield _Difference(name, before, now)


def _may_change(name: str) -> bool:
    return any(name == free or name.startswith(f"{free}.") for free in MAY_CHANGE)


def _mismatch(where: str, found: Sequence[_Difference]) -> EsperError:
    listed = "; ".join(f"{it.name} is {it.before!r} there and {it.now!r} here" for it in found)
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
