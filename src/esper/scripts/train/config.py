"""Settings of `esper train` for policies that do not learn, and of recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import tyro

from esper.leyline.errors import EsperError, UnknownNameError, unknown_name
from esper.leyline.seeds import require_training_seed
from esper.leyline.telemetry import TelemetryLevel
from esper.scripts.cli.command import read_command_line
from esper.scripts.cli.flags import flag_value, require_counts
from esper.scripts.cli.trust import require_trust
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig
from esper.simic.training.config_files import resolve
from esper.simic.training.runs.folder import LevelName
from esper.tamiyo.grammar import WORDS, ParsedPolicy, parse, parse_all
from esper.tamiyo.make_policy import (
    make_policy,
    require_known_names,
    require_standalone,
    resolve_topology,
)

if TYPE_CHECKING:
    from esper.leyline.protocols import PolicyProtocol, RewardProtocol
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine_config import EngineConfig

LEARNER: Final = "ppo"
"""The policy that learns; its settings are in `learner_config.py`."""
_PLACES: Final = "BLUEPRINT:SLOT,SLOT"
_SCHEDULE: Final = "fixed:BLUEPRINT@STEP:SLOT,SLOT"
_TOPOLOGY: Final = "SLOT=BLUEPRINT,SLOT=BLUEPRINT"
_REMOVED_FLAGS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "--blueprint": (_SCHEDULE, {"static-full": f"static-full:{_PLACES}"}),
    "--slots": (_SCHEDULE, {"static-full": f"static-full:{_PLACES}"}),
    "--topology": (f"static-final:{_TOPOLOGY}", {"fixed": f"fixed:{_TOPOLOGY}@STEP"}),
    "--start": (_SCHEDULE, {}),
    "--order": ("heuristic:BLUEPRINT,BLUEPRINT", {}),
}
"""Removed flags: what to write instead, and exceptions by policy."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Progress display and telemetry of a run."""

    telemetry: LevelName = "normal"
    """Telemetry level."""
    telemetry_dir: Path | None = None
    """Folder for events (events.jsonl and Parquet files)."""
    quiet: bool = False
    """Show no progress."""

    @property
    def level(self) -> TelemetryLevel:
        """Telemetry level."""
        return TelemetryLevel[self.telemetry.upper()]


@dataclass(frozen=True, slots=True)
class Train:
    """Train a population of hosts under a policy that does not learn."""

    policy: Annotated[str, tyro.conf.Suppress]
    """Policy in the grammar of `tamiyo/grammar.py`."""
    preset: str = ""
    """Take task and population from a preset: plain, digits_impaired, digits_quick,
    cifar_baseline."""
    config: Path | None = None
    """Take task, population and seed from a TOML or JSON file, such as a run's config.json."""
    trust: bool = False
    """Run the task file that --config names; by default only one given by --task is run."""
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
    charge: float | None = None
    """heuristic: fraction of the task's prices that a seed must earn to be kept; default: the
    heuristic's."""
    data_dir: Path | None = None
    """Folder of the data sets; default $ESPER_DATA_DIR, then ./data."""
    recording: Annotated[Recording, NO_PREFIX] = field(default_factory=Recording)
    """Progress and telemetry."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Output folder for plot and numbers."""
    dry_run: bool = False
    """Print the plan and an estimated time from a few timed steps; train and write nothing."""

    def check(self) -> TaskSpec:
        """Check the settings before anything is loaded; returns the task spec."""
        require_counts(rounds=self.rounds)
        require_training_seed(self.seed, "--seed")
        parsed = self.parsed
        if self.charge is not None and parsed.kind != "heuristic":
            raise EsperError(f"--charge has no meaning for {parsed.kind}: it is for heuristic")
        if self.population.rollout_steps is not None:
            raise EsperError(
                f"--rollout-steps has no meaning for {parsed.kind}: it is for policies that learn"
            )
        require_standalone(parsed)
        spec = self.task.spec()
        require_known_names(resolve_topology(parsed), spec.slots, spec.blueprints)
        self.make_policy(spec, None)  # raises on a bad step, slot or topology
        self.population.check(spec)
        return spec

    @property
    def parsed(self) -> ParsedPolicy:
        """The parsed policy; its label is printable."""
        (parsed,) = parse_all([self.policy])
        return parsed

    def engine_config(self) -> EngineConfig:
        """Convert to an `EngineConfig`."""
        return self.population.engine_config(self.seed)

    def make_policy(self, spec: TaskSpec, reward: RewardProtocol | None) -> PolicyProtocol[Any]:
        """Create the policy for this task."""
        return make_policy(
            self.parsed,
            spec,
            seed=self.seed,
            reward=reward,
            charge=self.charge,
        )


def read_train(policy: str, argv: Sequence[str]) -> Train:
    """Parse the command line, with a preset or file as defaults."""
    _reject_removed_flags(policy, argv)
    if policy not in WORDS or not {"-h", "--help"} & set(argv):
        _require_known_policy(policy)
    base = Train(policy)
    named, file = flag_value(argv, "--preset"), flag_value(argv, "--config")
    if named or file:
        resolved = resolve(
            named or "", Path(file) if file else None, task=flag_value(argv, "--task")
        )
        whole = replace(resolved.population, rollout_steps=None)  # there are no updates
        base = replace(base, task=resolved.task, population=whole, seed=resolved.seed)
    config = read_command_line(Train, argv, default=base, prog=f"esper train {policy}")
    require_trust(config.task.name, argv, Path(file) if file else None, config.trust)
    return config


def _require_known_policy(policy: str) -> None:
    """Raise on an unknown policy; suggestions include `ppo`."""
    try:
        parse(policy)
    except UnknownNameError:
        if policy.partition(":")[0] in WORDS:  # the unknown name is in its arguments
            raise
        raise unknown_name("policy", policy, (LEARNER, *WORDS)) from None


def _reject_removed_flags(policy: str, argv: Sequence[str]) -> None:
    """Raise on a removed flag, naming its replacement."""
    kind, _, _ = policy.partition(":")
    for word in argv:
        flag, _, _ = word.partition("=")
        if flag in _REMOVED_FLAGS:
            usual, by_kind = _REMOVED_FLAGS[flag]
            raise EsperError(f"{flag} was removed: write {by_kind.get(kind, usual)}")
