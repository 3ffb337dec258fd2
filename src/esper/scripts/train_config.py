"""The settings of `train`: who decides, on which task, how it is run and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.errors import EsperError
from esper.leyline.seeds import EVALUATION_SEEDS, require_training_seed
from esper.leyline.telemetry import TelemetryLevel

if TYPE_CHECKING:
    from esper.leyline.protocols import PolicyProtocol, RewardProtocol
    from esper.simic.training.config import TaskConfig, TrainingConfig
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine import EngineConfig

PolicyName = Literal["wait", "random", "fixed", "static-full", "static-final", "heuristic", "ppo"]

EVALUATION_SEED: Final = EVALUATION_SEEDS[0]
"""Learned controllers are judged on hosts and batches drawn from this seed."""


@dataclass(frozen=True)
class Train:
    """Train a population of hosts under a policy; with ppo, train the policy."""

    policy: Annotated[PolicyName, tyro.conf.Positional]
    """wait: nothing is grown. random: any legal action. fixed: one blueprint in the given slots
    from a given step on. static-full: the same, there from the start. static-final: a topology that
    was found, from the start. heuristic: seeds when training stalls. ppo: a controller that learns,
    round after round, and is then judged on hosts it has not seen."""
    task: str = "digits_impaired"
    """What is trained on."""
    rounds: int = 1
    """Episodes of each member, one after the other, each from a fresh host."""
    envs: int = 8
    """E: members that train side by side."""
    seed: int = 0
    """Every random draw follows from it."""
    device: str = "auto"
    """cpu, cuda, cuda:<number>; auto takes a GPU where there is one."""
    profile: Literal["exact", "fast"] = "exact"
    """exact: the same numbers every time; fast may reorder sums and picks the faster executor."""
    executor: Literal["auto", "vmap", "loop"] = "auto"
    """vmap computes all members at once, loop one after the other."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """What members are computed in; auto is bf16 on a GPU that has it."""
    data: Literal["files", "synthetic"] = "files"
    """files: the task's own data; synthetic: made-up data of the same shape."""
    data_dir: Path | None = None
    """Where data sets lie; $ESPER_DATA_DIR or ./data where not given."""
    data_placement: Literal["auto", "device", "stream"] = "auto"
    """Where training data lie: on the device, or on the host and streamed."""
    episode_length: int | None = None
    """Steps of an episode; the task's own where not given."""
    batch_size: int | None = None
    """Samples in a batch of each member; the task's own where not given."""
    batches_per_step: int | None = None
    """Train batches in a step; the task's own where not given."""
    blueprint: str = "conv_heavy"
    """fixed, static-full: what is grown."""
    slots: tuple[str, ...] = ()
    """fixed, static-full: where; every slot of the task where not given."""
    topology: tuple[str, ...] = ()
    """static-final: what stands where, for example r0c0=depthwise r0c1=conv_light."""
    start: int = 2
    """fixed: step at the end of which the first seed is germinated."""
    preset: str = ""
    """ppo: settings of the learner, by name; those named like the task, else plain."""
    blueprints: tuple[str, ...] = ()
    """ppo: what may be grown; all blueprints of the task where not given."""
    evaluation_envs: int = 16
    """ppo: fresh members the result is judged on, beside wait, random and heuristic."""
    telemetry: Literal["off", "minimal", "normal", "debug"] = "normal"
    """How much is recorded where --telemetry-dir is given."""
    telemetry_dir: Path | None = None
    """Folder for the events of the run (events.jsonl and Parquet files)."""
    out: Path = field(default_factory=lambda: Path("out"))
    """Folder for the picture and the numbers."""
    quiet: bool = False
    """Show no progress."""

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded."""
        for name in ("rounds", "envs", "evaluation_envs"):
            if getattr(self, name) < 1:
                flag = name.replace("_", "-")
                raise EsperError(f"--{flag} {getattr(self, name)}: must be 1 or more")
        require_training_seed(self.seed, "--seed")
        if self.start < 0:
            raise EsperError(f"--start {self.start}: must be 0 or more")
        if self.policy == "static-final" and not self.topology:
            raise EsperError("static-final needs --topology, for example r0c0=conv_light")
        ignored = [
            flag
            for flag, policies in _ONLY_FOR.items()
            if self.policy not in policies and getattr(self, flag) != _DEFAULTS[flag]
        ]
        if ignored:
            raise EsperError(
                f"--{ignored[0].replace('_', '-')} has no meaning for {self.policy}: it is for "
                f"{' and '.join(_ONLY_FOR[ignored[0]])}"
            )

    @property
    def level(self) -> TelemetryLevel:
        """How much is recorded."""
        return TelemetryLevel[self.telemetry.upper()]

    @property
    def task_name(self) -> str:
        """What the task calls itself, also where it came from a file: safe in file names."""
        return self.spec().name

    def spec(self) -> TaskSpec:
        """The task with what was changed about it."""
        from esper.tasks.registry import get_task_spec
        from esper.tasks.stand_in import with_synthetic_data

        if self.policy == "ppo":
            spec = self._learner_task().spec()
        else:
            spec = replace(get_task_spec(self.task), **self._task_changes())
        return with_synthetic_data(spec) if self.data == "synthetic" else spec

    def _task_changes(self) -> dict[str, Any]:
        """What flags change about the task."""
        names = ("episode_length", "batch_size", "batches_per_step", "blueprints")
        return {
            name: getattr(self, name) for name in names if getattr(self, name) not in (None, ())
        }

    def _preset(self) -> TrainingConfig:
        """The preset that was named, or the one named like the task, or plain."""
        from esper.simic.training.config import PRESETS, preset

        return preset(self.preset or (self.task if self.task in PRESETS else "plain"), self.rounds)

    def _learner_task(self) -> TaskConfig:
        """The task, with what the preset (where it is made for this task) and flags change."""
        from esper.simic.training.config import TaskConfig

        task = self._preset().task
        base = task if task.name == self.task else TaskConfig(self.task)
        return replace(base, **self._task_changes())

    def training_config(self) -> TrainingConfig:
        """The learner's settings: a preset, with the flags on top of it."""
        base = self._preset()
        population = replace(
            base.population,
            envs=self.envs,
            device=self.device,
            profile=self.profile,
            executor=self.executor,
            precision=self.precision,
            data_placement=self.data_placement,
        )
        return replace(base, task=self._learner_task(), population=population, seed=self.seed)

    def engine_config(self) -> EngineConfig:
        """The settings in the engine's words."""
        from esper.tolaria.engine import EngineConfig

        return EngineConfig(
            members=self.envs,
            seed=self.seed,
            device=self.device,
            profile=self.profile,
            executor=self.executor,
            precision=self.precision,
            data_placement=self.data_placement,
        )

    def make_policy(self, spec: TaskSpec, reward: RewardProtocol) -> PolicyProtocol[Any]:
        """Who decides."""
        from esper.tamiyo.baselines import RandomPolicy, StaticTopology, WaitPolicy
        from esper.tamiyo.heuristic import HeuristicPolicy
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
            return HeuristicPolicy(reward=reward)
        if self.policy == "static-full":
            return StaticTopology.full(self.blueprint, slots, reward)
        if self.policy == "static-final":
            return StaticTopology.final(self._found_topology(), reward)
        entries = tuple(ScheduleEntry(self.start, slot, self.blueprint) for slot in slots)
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


def _refuse_twice(flag: str, slots: Sequence[str]) -> None:
    for slot in slots:
        if slots.count(slot) > 1:
            raise EsperError(f"{flag}: slot {slot} is named twice")


_ONLY_FOR: Final[dict[str, tuple[str, ...]]] = {
    "blueprint": ("fixed", "static-full"),
    "slots": ("fixed", "static-full"),
    "start": ("fixed",),
    "topology": ("static-final",),
    "preset": ("ppo",),
    "blueprints": ("ppo",),
    "evaluation_envs": ("ppo",),
}
_DEFAULTS: Final[dict[str, Any]] = {
    name: Train.__dataclass_fields__[name].default for name in _ONLY_FOR
}
