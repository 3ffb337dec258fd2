"""The settings of `train` for policies that do not learn, and what both kinds of run share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.errors import EsperError
from esper.leyline.limits import require_at_most
from esper.leyline.seeds import require_training_seed
from esper.leyline.telemetry import TelemetryLevel
from esper.scripts.command import read_command_line
from esper.scripts.flags import peek, require_counts
from esper.scripts.trust import require_trust
from esper.simic.agent.config import NO_PREFIX
from esper.simic.training.config import PopulationConfig, TaskConfig
from esper.simic.training.config_files import resolve
from esper.simic.training.runs.folder import LevelWord

if TYPE_CHECKING:
    from esper.leyline.protocols import PolicyProtocol, RewardProtocol
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine_config import EngineConfig

PolicyName = Literal["wait", "random", "fixed", "static-full", "static-final", "heuristic"]
POLICIES: Final[dict[PolicyName, str]] = {
    "wait": "nothing is grown",
    "random": "any legal action",
    "fixed": "blueprints in the given slots, from a given step on",
    "static-full": "one blueprint in the given slots, there from the start",
    "static-final": "a topology that was found, there from the start",
    "heuristic": "seeds as early as may be, kept if they are worth their price",
}
"""Those that do not learn, and what they do."""


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

    policy: Annotated[PolicyName, tyro.conf.Suppress]
    """Who decides."""
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
    blueprint: str = "conv_heavy"
    """fixed, static-full: what is grown."""
    slots: tuple[str, ...] = ()
    """fixed, static-full: where; every slot of the task where not given."""
    topology: tuple[str, ...] = ()
    """static-final, and fixed in place of --blueprint and --slots: what stands where, for example
    r0c0=depthwise r0c1=conv_light."""
    start: int = 2
    """fixed: step at the end of which the first seed is germinated."""
    order: tuple[str, ...] = ()
    """heuristic: blueprints to try, in this order; its own where not given."""
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
        require_at_most("--start ", self.start)
        if self.start < 0:
            raise EsperError(f"--start {self.start}: must be 0 or more")
        if self.policy == "static-final" and not self.topology:
            raise EsperError("static-final needs --topology, for example r0c0=conv_light")
        if self.topology and (self.slots or self.blueprint != _DEFAULTS["blueprint"]):
            raise EsperError("--topology says what is grown where: leave --blueprint and --slots")
        ignored = [
            flag
            for flag, policies in _ONLY_FOR.items()
            if self.policy not in policies and getattr(self, flag) != _DEFAULTS[flag]
        ]
        if ignored:
            raise EsperError(
                f"--{ignored[0]} has no meaning for {self.policy}: it is for "
                f"{' and '.join(_ONLY_FOR[ignored[0]])}"
            )
        if self.population.rollout_steps is not None:
            raise EsperError(
                f"--rollout-steps has no meaning for {self.policy}: it is for policies that learn"
            )
        spec = self.task.spec()
        self.population.check(spec)
        return spec

    def engine_config(self) -> EngineConfig:
        """The settings in the engine's words."""
        return self.population.engine_config(self.seed)

    def make_policy(self, spec: TaskSpec, reward: RewardProtocol) -> PolicyProtocol[Any]:
        """Who decides."""
        from esper.tamiyo.baselines import RandomPolicy, StaticTopology, WaitPolicy
        from esper.tamiyo.heuristic import HeuristicConfig, HeuristicPolicy
        from esper.tamiyo.schedule import FixedSchedule, ScheduleConfig, ScheduleEntry

        slots = self.slots or spec.slots
        _refuse_twice("--slots", slots)
        if self.policy == "fixed" and self.start >= spec.episode_length - 1:
            raise EsperError(
                f"--start {self.start}: the episode has {spec.episode_length} steps; a seed that "
                f"is to grow starts before step {spec.episode_length - 1}"
            )
        if self.policy == "wait":
            return WaitPolicy(reward)
        if self.policy == "random":
            return RandomPolicy(self.seed, reward)
        if self.policy == "heuristic":
            rules = HeuristicConfig(blueprints=self.order)
            rules = rules if self.charge is None else replace(rules, charge=self.charge)
            return HeuristicPolicy(rules, reward, prices=spec.score)
        if self.policy == "static-full":
            return StaticTopology.full(self.blueprint, slots, reward)
        if self.policy == "static-final":
            return StaticTopology.final(self._found_topology(), reward)
        grown = self._found_topology() or dict.fromkeys(slots, self.blueprint)
        entries = tuple(ScheduleEntry(self.start, slot, kind) for slot, kind in grown.items())
        return FixedSchedule(ScheduleConfig(entries), reward)

    def _found_topology(self) -> dict[str, str]:
        """Blueprint by slot, from `slot=blueprint` words."""
        pairs = [word.partition("=") for word in self.topology]
        for slot, mark, blueprint in pairs:
            if not (slot and mark and blueprint):
                raise EsperError(
                    f"--topology {slot}{mark}{blueprint}: expected slot=blueprint, for example "
                    f"r0c0=conv_light"
                )
        _refuse_twice("--topology", [slot for slot, _, _ in pairs])
        return {slot: blueprint for slot, _, blueprint in pairs}


def read_train(policy: PolicyName, argv: Sequence[str]) -> Train:
    """The settings a command line describes, on top of a preset or a file where it names one."""
    base = Train(policy)
    named, file = peek(argv, "--preset"), peek(argv, "--config")
    if named or file:
        resolved = resolve(named or "", Path(file) if file else None, task=peek(argv, "--task"))
        whole = replace(resolved.population, rollout_steps=None)  # updates: there are none
        base = replace(base, task=resolved.task, population=whole, seed=resolved.seed)
    config = read_command_line(Train, argv, default=base, prog=f"esper train {policy}")
    require_trust(config.task.name, argv, Path(file) if file else None, config.trust)
    return config


def _refuse_twice(flag: str, slots: Sequence[str]) -> None:
    for slot in slots:
        if slots.count(slot) > 1:
            raise EsperError(f"{flag}: slot {slot} is named twice")


_ONLY_FOR: Final[dict[str, tuple[PolicyName, ...]]] = {
    "blueprint": ("fixed", "static-full"),
    "slots": ("fixed", "static-full"),
    "start": ("fixed",),
    "topology": ("static-final", "fixed"),
    "order": ("heuristic",),
    "charge": ("heuristic",),
}
_DEFAULTS: Final[dict[str, Any]] = {
    name: Train.__dataclass_fields__[name].default for name in _ONLY_FOR
}
