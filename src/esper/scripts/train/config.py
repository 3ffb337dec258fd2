"""The settings of `train` for policies that do not learn, and what both kinds of run share."""

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
from esper.scripts.cli.flags import peek, require_counts
from esper.scripts.cli.trust import require_trust
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig
from esper.simic.training.config_files import resolve
from esper.simic.training.runs.folder import LevelWord
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
"""The policy that learns: it has settings of its own (`learner_config.py`)."""
_PLACES: Final = "BLUEPRINT:SLOT,SLOT"
_SCHEDULE: Final = "fixed:BLUEPRINT@STEP:SLOT,SLOT"
_TOPOLOGY: Final = "SLOT=BLUEPRINT,SLOT=BLUEPRINT"
_GONE: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "--blueprint": (_SCHEDULE, {"static-full": f"static-full:{_PLACES}"}),
    "--slots": (_SCHEDULE, {"static-full": f"static-full:{_PLACES}"}),
    "--topology": (f"static-final:{_TOPOLOGY}", {"fixed": f"fixed:{_TOPOLOGY}@STEP"}),
    "--start": (_SCHEDULE, {}),
    "--order": ("heuristic:BLUEPRINT,BLUEPRINT", {}),
}
"""Flags there once were: what to write instead, and what where the policy is another."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What is shown and kept of a run while it goes."""

    telemetry: LevelWord = "normal"
    """How much is recorded of what happens."""
    telemetry_dir: Path | None = None
    """Folder for the events of the run (events.jsonl and Parquet files)."""
    quiet: bool = False
    """Show no progress."""

    @property
    def level(self) -> TelemetryLevel:
        """How much is recorded."""
        return TelemetryLevel[self.telemetry.upper()]


@dataclass(frozen=True, slots=True)
class Train:
    """Train a population of hosts under a policy that does not learn."""

    policy: Annotated[str, tyro.conf.Suppress]
    """Who decides: a word of the grammar (`tamiyo/grammar.py`)."""
    preset: str = ""
    """Take task and population from these settings of the learner: plain, digits_impaired,
    digits_quick, cifar_baseline."""
    config: Path | None = None
    """Take task, population and seed from a TOML or JSON file, such as a run's config.json."""
    trust: bool = False
    """Run the task file that --config names; without it only one that --task names is run."""
    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """What is trained on."""
    population: Annotated[PopulationConfig, NO_PREFIX] = field(
        default_factory=lambda: PopulationConfig(envs=8)
    )
    """How the hosts are run."""
    rounds: int = 1
    """Episodes of each member, one after the other, each from a fresh host."""
    seed: int = 0
    """Every random draw follows from it."""
    charge: float | None = None
    """heuristic: share of the task's prices that a seed must earn to be kept; its own where not
    given."""
    data_dir: Path | None = None
    """Where data sets lie; $ESPER_DATA_DIR or ./data where not given."""
    recording: Annotated[Recording, NO_PREFIX] = field(default_factory=Recording)
    """What is shown and kept of it."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Folder for the picture and the numbers."""
    dry_run: bool = False
    """Show the plan, with the time a few real steps take; train nothing, write nothing."""

    def check(self) -> TaskSpec:
        """Refuse what cannot work before anything is loaded; the task."""
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
        self.make_policy(spec, None)  # a bad step, slot or topology is refused here
        self.population.check(spec)
        return spec

    @property
    def parsed(self) -> ParsedPolicy:
        """What the policy's word means; its label can be printed."""
        (parsed,) = parse_all([self.policy])
        return parsed

    def engine_config(self) -> EngineConfig:
        """The settings in the engine's words."""
        return self.population.engine_config(self.seed)

    def make_policy(self, spec: TaskSpec, reward: RewardProtocol | None) -> PolicyProtocol[Any]:
        """Who decides, on this task."""
        return make_policy(
            self.parsed,
            slots=spec.slots,
            episode_length=spec.episode_length,
            prices=spec.score,
            seed=self.seed,
            reward=reward,
            charge=self.charge,
        )


def read_train(policy: str, argv: Sequence[str]) -> Train:
    """The settings a command line describes, on top of a preset or a file where it names one."""
    _refuse_gone_flags(policy, argv)
    if policy not in WORDS or not {"-h", "--help"} & set(argv):
        _require_word(policy)
    base = Train(policy)
    named, file = peek(argv, "--preset"), peek(argv, "--config")
    if named or file:
        resolved = resolve(named or "", Path(file) if file else None, task=peek(argv, "--task"))
        whole = replace(resolved.population, rollout_steps=None)  # updates: there are none
        base = replace(base, task=resolved.task, population=whole, seed=resolved.seed)
    config = read_command_line(Train, argv, default=base, prog=f"esper train {policy}")
    require_trust(config.task.name, argv, Path(file) if file else None, config.trust)
    return config


def _require_word(policy: str) -> None:
    """Refuse a word that names no policy; the one that learns is among those it may have meant."""
    try:
        parse(policy)
    except UnknownNameError:
        if policy.partition(":")[0] in WORDS:  # what stands behind it is unknown
            raise
        raise unknown_name("policy", policy, (LEARNER, *WORDS)) from None


def _refuse_gone_flags(policy: str, argv: Sequence[str]) -> None:
    """Say what to write instead of a flag that was there once."""
    kind, _, _ = policy.partition(":")
    for word in argv:
        flag, _, _ = word.partition("=")
        if flag in _GONE:
            usual, by_kind = _GONE[flag]
            raise EsperError(f"{flag} is gone: write {by_kind.get(kind, usual)}")
