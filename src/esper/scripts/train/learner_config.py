"""Settings of `esper train ppo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esper.leyline.errors import EsperError, shown
from esper.leyline.limits import MAX_MEMBERS, require_counts
from esper.scripts.cli.command import read_command_line
from esper.scripts.cli.flags import flag_value, insert_flag_value, int_flag_value
from esper.scripts.cli.run_paths import RUNS
from esper.scripts.cli.trust import require_trust
from esper.scripts.train.config import (
    Recording,
    recording_of,
    resume_folder,
    session_settings,
    with_absolute_path,
)
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import TrainingConfig
from esper.simic.training.config_files import overlay, read_entries, resolve
from esper.simic.training.runs.checkpoint_store import KEEP
from esper.simic.training.runs.folder import (
    SessionSettings,
    read_config,
    read_retention,
    read_session_settings,
    require_run,
)
from esper.simic.training.runs.kept_members import KEEP_MEMBERS
from esper.simic.training.runs.policy_file import is_policy_run, read_policy
from esper.storage.sessions import resume_training
from esper.tasks.task_files import absolute_reference

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True)
class TrainPPO:
    """Train a controller with PPO, then evaluate it on fresh hosts.

    Settings, checkpoints, events and report go to a new folder in --runs. Settings come from the
    defaults, then --preset, then --config, then the flags below; the defaults shown include the
    preset and the file on this command line.
    """

    preset: str = ""
    """Preset: growing, plain, digits_impaired, digits_quick, cifar_baseline; default: the one named
    like the task, else growing."""
    config: Path | None = None
    """TOML or JSON settings file, such as a run's config.json."""
    resume: Path | None = None
    """Resume the run in this folder with its settings; without a value: the newest run (of --task,
    --seed and --run-name if given)."""
    trust: bool = False
    """Run the files of task and reward that --config or --resume names; by default only those given
    by --task and --reward are run."""
    runs: Path = RUNS
    """Folder to create the run folder in."""
    run_name: str = "ppo"
    """Name of the run; part of its folder name."""
    training: Annotated[TrainingConfig, NO_PREFIX] = field(default_factory=TrainingConfig)
    """Training settings."""
    evaluation_envs: int | None = None
    """Fresh members for the final evaluation of controller and baselines; default: --envs."""
    checkpoint_every: int = 1
    """Rounds between checkpoints; the best and the last round are always saved."""
    keep: int = KEEP
    """Checkpoints to keep besides the best."""
    keep_members: int = KEEP_MEMBERS
    """Best members of all rounds to keep as networks, for esper export; 0: none."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    recording: Annotated[Recording, NO_PREFIX] = field(default_factory=Recording)
    """Progress and telemetry; events go to the run folder by default."""
    dry_run: bool = False
    """Check settings, task and data and print the plan; train and write nothing."""

    def check(self) -> TaskSpec:
        """Check the settings before anything is loaded; returns the task spec."""
        require_counts(MAX_MEMBERS, evaluation_envs=self.judged_members)
        require_counts(checkpoint_every=self.checkpoint_every, keep=self.keep)
        self.recording.check()
        if self.keep_members < 0:
            raise EsperError(f"--keep-members {self.keep_members}: must be 0 or more")
        return self.training.check()

    @property
    def judged_members(self) -> int:
        """Members of the final evaluation."""
        if self.evaluation_envs is None:
            return self.training.population.envs
        return self.evaluation_envs

    @property
    def session(self) -> SessionSettings:
        """Session settings for a later resume, with absolute paths."""
        return session_settings(self.data_dir, self.recording, self.evaluation_envs)


def read_train_ppo(argv: Sequence[str]) -> TrainPPO:
    """Parse the command line, with preset, file or resumed run as defaults."""
    named, file = flag_value(argv, "--preset") or "", flag_value(argv, "--config")
    path = Path(file) if file else None
    folder = resume_folder(argv)
    if folder is None:
        task, rounds = flag_value(argv, "--task"), int_flag_value(argv, "--rounds")
        base = TrainPPO(training=resolve(named, path, rounds, task))
    else:
        if named:
            raise EsperError(f"--preset {named}: a run resumes with its own settings; leave it out")
        require_run(folder)
        _require_learner(folder)
        training = read_config(folder)
        if path is not None:
            training = overlay(training, read_entries(path), path)
        argv = insert_flag_value(argv, "--resume", str(folder))
        base = _last_session_defaults(folder, training)
    config = read_command_line(TrainPPO, argv, default=base, prog="esper train ppo")
    found = config.training
    require_trust(found.task.name, argv, path or folder, config.trust)
    require_trust(found.reward.own, argv, path or folder, config.trust, "reward")
    reward = replace(found.reward, own=absolute_reference(found.reward.own))
    found = replace(found, task=with_absolute_path(found.task, folder), reward=reward)
    return replace(config, training=found)


def _require_learner(folder: Path) -> None:
    """Raise if the run in `folder` does not learn."""
    if is_policy_run(folder):
        policy = read_policy(folder).policy
        command = resume_training(folder, policy)
        raise EsperError(f"{folder} is a run of {shown(policy)}: resume it with: {command}")


def _last_session_defaults(folder: Path, training: TrainingConfig) -> TrainPPO:
    """Defaults for resuming a run: the settings of its last session."""
    retention, session = read_retention(folder), read_session_settings(folder)
    return TrainPPO(
        training=training,
        evaluation_envs=session.evaluation_envs,
        checkpoint_every=retention.every,
        keep=retention.keep,
        keep_members=retention.members,
        data_dir=session.data_place,
        recording=recording_of(session),
    )
