"""Settings of `esper train` for policies that do not learn, and of recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro

from esper.compare.own import own_policy, own_settings
from esper.leyline.errors import EsperError, UnknownNameError, unknown_name
from esper.leyline.limits import require_counts
from esper.leyline.seeds import require_training_seed
from esper.leyline.telemetry import QUEUE_SIZE, TelemetryConfig, TelemetryLevel
from esper.nissa.trackers.names import TrackerName, require_trackers
from esper.scripts.cli.command import read_command_line
from esper.scripts.cli.flags import flag_value, insert_flag_value, int_flag_value
from esper.scripts.cli.help import HELP_FLAGS
from esper.scripts.cli.run_paths import RUNS
from esper.scripts.cli.trust import require_trust
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig
from esper.simic.training.config_files import resolve
from esper.simic.training.runs.folder import (
    LevelName,
    SessionSettings,
    read_config,
    read_retention,
    read_session_settings,
    require_run,
)
from esper.simic.training.runs.kept_members import KEEP_MEMBERS
from esper.simic.training.runs.policy_file import LEARNER, newest_run, read_policy
from esper.simic.training.runs.sources import require_user_file
from esper.tamiyo.grammar import WORDS, ParsedPolicy, parse, parse_all
from esper.tamiyo.make_policy import (
    make_policy,
    require_known_names,
    require_standalone,
    spec_for,
)
from esper.tamiyo.policy import Policy, PolicyClient
from esper.tasks.task_files import absolute_reference, is_file_reference
from esper.tasks.user_objects import UserFiles

if TYPE_CHECKING:
    from esper.leyline.protocols import PolicyProtocol, RewardProtocol
    from esper.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True)
class Recording:
    """Progress display and telemetry of a run."""

    telemetry: LevelName = "normal"
    """Telemetry level."""
    telemetry_dir: Path | None = None
    """Folder for events (events.jsonl and Parquet files)."""
    quiet: bool = False
    """Show no progress."""
    track: tuple[TrackerName, ...] = ()
    """Trackers that get the figures of every round; their files go to the run folder."""
    step_events: bool = False
    """Record measurements and actions of every step at any telemetry level except off."""
    queue_size: int = QUEUE_SIZE
    """Events that may wait to be written; more are dropped and counted."""

    @property
    def config(self) -> TelemetryConfig:
        """Settings of telemetry."""
        level = TelemetryLevel[self.telemetry.upper()]
        return TelemetryConfig(level, self.step_events, queue_size=self.queue_size)

    def check(self) -> None:
        """Raise if a setting is invalid."""
        require_trackers(self.track, "--track")
        require_counts(queue_size=self.queue_size)


_FILES: Final = UserFiles()
"""Files of policies that this process has run, each once."""


@dataclass(frozen=True, slots=True)
class Train:
    """Train a population of hosts under a policy that does not learn.

    Settings, finished rounds, the best members, events and report go to a new folder in --runs.
    """

    policy: Annotated[str, tyro.conf.Suppress]
    """Policy in the grammar of `tamiyo/grammar.py`."""
    preset: str = ""
    """Take task and population from a preset: growing, plain, digits_impaired, digits_quick,
    cifar_baseline."""
    config: Path | None = None
    """Take task, population and seed from a TOML or JSON file, such as a run's config.json."""
    resume: Path | None = None
    """Resume the run in this folder with its settings; without a value: the newest run of this
    policy (of --task, --seed and --run-name if given)."""
    trust: bool = False
    """Run the task file that --config or --resume names; by default only one given by --task is
    run."""
    runs: Path = RUNS
    """Folder to create the run folder in."""
    run_name: str = ""
    """Name of the run; part of its folder name; default: the policy."""
    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """The task."""
    population: Annotated[PopulationConfig, NO_PREFIX] = field(
        default_factory=lambda: PopulationConfig(envs=8)
    )
    """The population."""
    rounds: int = 1
    """Episodes per member, each from a fresh host."""
    seed: int = 0
    """Seed of all random draws."""
    keep_members: int = KEEP_MEMBERS
    """Best members of all rounds to keep as networks, for esper export; 0: none."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    recording: Annotated[Recording, NO_PREFIX] = field(default_factory=Recording)
    """Progress and telemetry; events go to the run folder by default."""
    out: Path | None = None
    """Write the numbers to this folder, over those of an earlier run; default: the run
    folder."""
    dry_run: bool = False
    """Check settings, task and data and print the plan; train and write nothing."""

    def check(self) -> TaskSpec:
        """Check the settings before anything is loaded; returns the task spec."""
        require_counts(rounds=self.rounds)
        self.recording.check()
        if self.keep_members < 0:
            raise EsperError(f"--keep-members {self.keep_members}: must be 0 or more")
        require_training_seed(self.seed, "--seed")
        parsed = self.parsed
        if self.population.rollout_steps is not None:
            raise EsperError(
                f"--rollout-steps has no meaning for {parsed.kind}: it is for policies that learn"
            )
        if parsed.kind != "own":
            require_standalone(parsed)
        spec = self.task.spec()
        require_known_names(parsed, spec.slots, spec.blueprints)
        self.make_policy(spec, None)  # raises on a bad step, slot or topology
        self.limited(spec).population.check(self.spec_for(spec))
        return spec

    @property
    def parsed(self) -> ParsedPolicy:
        """The parsed policy; its label is printable."""
        (parsed,) = parse_all([self.policy])
        return parsed

    def make_policy(self, spec: TaskSpec, reward: RewardProtocol | None) -> PolicyProtocol[Any]:
        """Create the policy for this task; runs the file of one of the user's."""
        if self.parsed.kind == "own":
            return PolicyClient(self._own(), reward)
        return make_policy(self.parsed, spec, seed=self.seed, reward=reward)

    def _own(self) -> Policy:
        return own_policy(_FILES, self.parsed)()

    def _own_settings(self, spec: TaskSpec) -> tuple[TaskSpec, PopulationConfig]:
        return own_settings(self._own(), self.parsed, spec, self.population)

    def spec_for(self, spec: TaskSpec) -> TaskSpec:
        """The task as this policy needs it."""
        if self.parsed.kind == "own":
            return self._own_settings(spec)[0]
        return spec_for(self.parsed, spec)

    def limited(self, spec: TaskSpec) -> Train:
        """The same with the limits that the class of a policy of the user's sets."""
        if self.parsed.kind == "own":
            return replace(self, population=self._own_settings(spec)[1])
        return self

    @property
    def training(self) -> TrainingConfig:
        """The settings that the run folder keeps."""
        return TrainingConfig(self.task, self.population, self.rounds, self.seed)

    @property
    def session(self) -> SessionSettings:
        """Session settings for a later resume, with absolute paths."""
        return session_settings(self.data_dir, self.recording)


def session_settings(
    data_dir: Path | None, recording: Recording, evaluation_envs: int | None = None
) -> SessionSettings:
    """Session settings for a later resume, with absolute paths."""
    return SessionSettings(
        evaluation_envs=evaluation_envs,
        data_dir=_absolute(data_dir),
        telemetry=recording.telemetry,
        telemetry_dir=_absolute(recording.telemetry_dir),
        track=recording.track,
        step_events=recording.step_events,
        queue_size=recording.queue_size,
    )


def recording_of(session: SessionSettings) -> Recording:
    """How the last session of a run was recorded."""
    return Recording(
        telemetry=session.telemetry,
        telemetry_dir=Path(session.telemetry_dir) if session.telemetry_dir else None,
        track=session.track,
        step_events=session.step_events,
        queue_size=session.queue_size,
    )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def read_train(policy: str, argv: Sequence[str]) -> Train:
    """Parse the command line, with a preset or file as defaults."""
    if policy not in WORDS or not set(HELP_FLAGS) & set(argv):
        _require_known_policy(policy)
    base = Train(policy)
    named, file = flag_value(argv, "--preset"), flag_value(argv, "--config")
    folder = resume_folder(argv, policy)
    if folder is not None:
        if named or file:
            raise EsperError(
                f"--{'preset' if named else 'config'}: a run resumes with its own settings; leave "
                f"it out"
            )
        base = _last_session(policy, folder)
        argv = insert_flag_value(argv, "--resume", str(folder))
    elif named or file:
        resolved = resolve(
            named or "", Path(file) if file else None, task=flag_value(argv, "--task")
        )
        whole = replace(resolved.population, rollout_steps=None)  # there are no updates
        base = replace(base, task=resolved.task, population=whole, seed=resolved.seed)
    config = read_command_line(Train, argv, default=base, prog=f"esper train {policy}")
    _require_limits_in_class(config.parsed, argv)
    require_trust(config.task.name, argv, Path(file) if file else folder, config.trust)
    return replace(config, task=with_absolute_path(config.task, folder))


def _require_limits_in_class(parsed: ParsedPolicy, argv: Sequence[str]) -> None:
    """Raise on a flag that the class of a policy of the user's decides."""
    for name in ("counterfactual_stride", "frozen_heads"):
        flag = f"--{name.replace('_', '-')}"
        if parsed.kind == "own" and flag_value(argv, flag) is not None:
            raise EsperError(f"{flag}: {parsed.text} sets {name} in its class: change it there")


def with_absolute_path(task: TaskConfig, folder: Path | None) -> TaskConfig:
    """The same task, its file by an absolute path; `folder`: the run that resumes."""
    found = replace(task, name=absolute_reference(task.name))
    if folder is not None:
        require_user_file(folder, found.name)
    return found


def task_label(task: TaskConfig, spec: TaskSpec) -> str:
    """Name of the task in the name of a run folder: for a task file, that of the task in it."""
    return spec.name if is_file_reference(task.name) else task.name


def resume_folder(argv: Sequence[str], policy: str | None = None) -> Path | None:
    """Run folder to resume, for --resume without a name the newest matching run; None: a new run.

    `policy`: one that does not learn; None: the learner.
    """
    named = flag_value(argv, "--resume")
    if named is not None:
        return Path(named)
    if "--resume" not in argv:
        return None
    root, seed = Path(flag_value(argv, "--runs") or RUNS), int_flag_value(argv, "--seed")
    text = None if policy is None else parse(policy).text
    task, name = flag_value(argv, "--task"), flag_value(argv, "--run-name")
    return newest_run(root, task, name, seed, text)


def _last_session(policy: str, folder: Path) -> Train:
    """Defaults for resuming a run: the settings of its last session."""
    require_run(folder)
    read_policy(folder)  # raises if it is a run of the learner
    training, session = read_config(folder), read_session_settings(folder)
    return Train(
        policy,
        task=training.task,
        population=training.population,
        rounds=training.rounds,
        seed=training.seed,
        keep_members=read_retention(folder).members,
        data_dir=session.data_place,
        recording=recording_of(session),
    )


def _require_known_policy(policy: str) -> None:
    """Raise on an unknown policy; suggestions include `ppo`."""
    try:
        parse(policy)
    except UnknownNameError:
        if policy.partition(":")[0] in WORDS:  # the unknown name is in its arguments
            raise
        raise unknown_name("policy", policy, (LEARNER, *WORDS)) from None
