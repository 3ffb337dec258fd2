"""The settings of `train ppo`: those of the learner, and what is kept of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from esper.leyline.errors import EsperError
from esper.leyline.limits import MAX_MEMBERS
from esper.scripts.cli.command import read_command_line
from esper.scripts.cli.flags import fill_in, peek, peek_count, require_counts
from esper.scripts.cli.trust import require_trust
from esper.scripts.train.config import Recording
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
from esper.simic.training.runs.listing import newest_run

if TYPE_CHECKING:
    from esper.tasks.spec import TaskSpec

RUNS: Final = Path("runs")
"""Where run folders lie."""


@dataclass(frozen=True, slots=True)
class TrainPPO:
    """Train a controller with PPO, then judge it on hosts it has not seen.

    Everything is kept in a folder of its own in --runs: settings, checkpoints, events, report.
    Settings come from the defaults, then --preset, then --config, then the flags below; the
    defaults shown are those of the preset and the file that stand on this command line.
    """

    preset: str = ""
    """Settings by name: plain, digits_impaired, digits_quick, cifar_baseline; without it the one
    called like the task, or plain."""
    config: Path | None = None
    """TOML or JSON file with settings, such as a run's config.json."""
    resume: Path | None = None
    """Go on with the run in this folder, with its settings, data, telemetry and judgement; alone:
    with the newest run (of --task, --seed and --run-name where these are given)."""
    trust: bool = False
    """Run the task file that --config or --resume names; without it only one that --task names is
    run."""
    runs: Path = RUNS
    """Folder that run folders are made in."""
    run_name: str = "ppo"
    """What the run is called in its folder's name."""
    training: Annotated[TrainingConfig, NO_PREFIX] = field(default_factory=TrainingConfig)
    """How it learns."""
    evaluation_envs: int | None = None
    """Fresh members the result is judged on, beside static-final (its own topologies, planted),
    wait, random and heuristic; as many as --envs where not given."""
    checkpoint_every: int = 1
    """Rounds from one checkpoint to the next; the best round and the last one are always kept."""
    keep: int = KEEP
    """Checkpoints that stay, besides the best."""
    data_dir: Path | None = None
    """Where data sets lie; $ESPER_DATA_DIR or ./data where not given."""
    recording: Annotated[Recording, NO_PREFIX] = field(default_factory=Recording)
    """What is shown and kept of it; events go to the run folder without --telemetry-dir."""
    dry_run: bool = False
    """Show the plan, with the time a few real steps take; train nothing, write nothing."""

    def check(self) -> TaskSpec:
        """Refuse what cannot work before anything is loaded; the task."""
        require_counts(MAX_MEMBERS, evaluation_envs=self.judged_members)
        require_counts(checkpoint_every=self.checkpoint_every, keep=self.keep)
        return self.training.check()

    @property
    def judged_members(self) -> int:
        """Fresh members the result is judged on."""
        if self.evaluation_envs is None:
            return self.training.population.envs
        return self.evaluation_envs

    @property
    def session(self) -> SessionSettings:
        """What a run that goes on is to have as this one has it, wherever it goes on from."""
        return SessionSettings(
            evaluation_envs=self.evaluation_envs,
            data_dir=_absolute(self.data_dir),
            telemetry=self.recording.telemetry,
            telemetry_dir=_absolute(self.recording.telemetry_dir),
        )


def read_train_ppo(argv: Sequence[str]) -> TrainPPO:
    """The settings a command line describes; what they stand on is read first."""
    named, file = peek(argv, "--preset") or "", peek(argv, "--config")
    path = Path(file) if file else None
    folder = _resumed(argv)
    if folder is None:
        task, rounds = peek(argv, "--task"), peek_count(argv, "--rounds")
        base = TrainPPO(training=resolve(named, path, rounds, task))
    else:
        if named:
            raise EsperError(f"--preset {named}: a run goes on with its own settings; leave it out")
        require_run(folder)
        training = read_config(folder)
        if path is not None:
            training = overlay(training, read_entries(path), path)
        argv = fill_in(argv, "--resume", str(folder))
        base = _as_before(folder, training)
    config = read_command_line(TrainPPO, argv, default=base, prog="esper train ppo")
    require_trust(config.training.task.name, argv, path or folder, config.trust)
    return config


def _as_before(folder: Path, training: TrainingConfig) -> TrainPPO:
    """The command that goes on with a run as its last session left it."""
    retention, session = read_retention(folder), read_session_settings(folder)
    events = session.telemetry_dir
    return TrainPPO(
        training=training,
        evaluation_envs=session.evaluation_envs,
        checkpoint_every=retention.every,
        keep=retention.keep,
        data_dir=session.data_place,
        recording=Recording(session.telemetry, Path(events) if events else None),
    )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _resumed(argv: Sequence[str]) -> Path | None:
    """The run to go on with; behind a bare flag the newest one that could be meant."""
    named = peek(argv, "--resume")
    if named is not None:
        return Path(named)
    return _newest(argv) if "--resume" in argv else None


def _newest(argv: Sequence[str]) -> Path:
    """The youngest run that the command line could mean."""
    root = Path(peek(argv, "--runs") or RUNS)
    seed = peek_count(argv, "--seed")
    return newest_run(root, peek(argv, "--task"), peek(argv, "--run-name"), seed)
