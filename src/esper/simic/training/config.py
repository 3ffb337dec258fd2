"""`TrainingConfig`, the settings of a PPO training run, and its presets.

Does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.compute import ComputeSettings
from esper.leyline.context import ContextSpec
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.limits import (
    MAX_BATCHES_PER_STEP,
    MAX_EPISODE_LENGTH,
    MAX_MEMBERS,
    require_at_most,
)
from esper.leyline.seeds import require_training_seed
from esper.simic.agent.config import NO_PREFIX, PPOConfig
from esper.simic.agent.schedule import WHOLE_RUN, Schedule
from esper.simic.rewards.config import RewardConfig
from esper.tamiyo.frozen_heads import PLAIN_BLEND, FrozenHeads, check_frozen
from esper.tamiyo.network_config import GROWING_PRIOR, NetworkConfig
from esper.tasks.context_files import read_context
from esper.tasks.task_files import is_file_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper.simic.agent.agent import PPOAgent
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """The task, and changes to its settings."""

    name: Annotated[str, tyro.conf.arg(name="task")] = "digits_impaired"
    """Task to train on: a name that `esper tasks` lists, or your own as FILE.py[:NAME]."""
    blueprints: tuple[str, ...] = ()
    """Blueprints that may be grown; default: all of the task's."""
    episode_length: int | None = None
    """Steps per episode; default: the task's."""
    batch_size: int | None = None
    """Samples per batch and member; default: the task's."""
    batches_per_step: int | None = None
    """Training batches per step; default: the task's."""
    rent: float = 1.0
    """Price of growth: multiplies the task's score constants (parameters, MACs, FLOPs)."""
    data: Literal["files", "synthetic"] = "files"
    """files: the task's data; synthetic: generated data of the same shape."""
    host: str | None = None
    """Shape of the task's CNN host as WIDTHxBLOCKSkKERNEL, for example 8x4k3; default: the
    task's."""
    contexts: ContextSpec | None = None
    """What differs between members and rounds: fixed (nothing), planned (as fixed, with a plan
    phase and a compute clock), varied (prices, caps, budgets, data), a JSON file or JSON text of a
    ContextSpec. Default: the task's."""

    def __post_init__(self) -> None:
        named: object = self.contexts
        if isinstance(named, str):  # as on the command line
            object.__setattr__(self, "contexts", read_context(named))
        require_at_most("episode_length=", self.episode_length, MAX_EPISODE_LENGTH)
        require_at_most("batch_size=", self.batch_size)
        require_at_most("batches_per_step=", self.batches_per_step, MAX_BATCHES_PER_STEP)
        if not 0 <= self.rent < math.inf:
            raise EsperError(f"rent={self.rent}: must be 0 or more, and finite")

    def spec(self) -> TaskSpec:
        """Build the task spec with these changes applied."""
        from esper.tasks.registry import get_task_spec

        return self.applied_to(get_task_spec(self.name))

    def applied_to(self, spec: TaskSpec) -> TaskSpec:
        """Apply these changes to a task that is not looked up by name."""
        from esper.tasks.host_shapes import with_host_shape
        from esper.tasks.synthetic_data import with_synthetic_data

        if self.host is not None:
            spec = with_host_shape(spec, self.host)
        for blueprint in self.blueprints:
            if blueprint not in spec.blueprints:
                raise unknown_name("blueprint", blueprint, spec.blueprints, f"of {spec.name}")
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("episode_length", "batch_size", "batches_per_step")
            if getattr(self, name) is not None
        }
        if self.blueprints:
            changes["blueprints"] = self.blueprints
        if self.contexts is not None:
            changes["context"] = self.contexts
        prices = {c: self.rent * getattr(spec.score, c) for c in ("c_p", "c_m", "c_f")}
        rent = self.rent * spec.rent
        spec = replace(spec, **changes, score=replace(spec.score, **prices), rent=rent)
        return with_synthetic_data(spec) if self.data == "synthetic" else spec


@dataclass(frozen=True, slots=True)
class PopulationConfig(ComputeSettings):
    """The population of hosts that the controller is trained on."""

    envs: int = 16
    """E: members trained in parallel; E episodes make a round."""
    rollout_steps: int | None = None
    """Steps per rollout; None: whole episodes."""
    counterfactual_stride: int = 1
    """Steps between counterfactual evaluations of seeds."""
    frozen_heads: FrozenHeads = ()
    """Action heads fixed to one choice: (head, index of the choice)."""

    def __post_init__(self) -> None:
        require_at_most("envs=", self.envs, MAX_MEMBERS)
        require_at_most("rollout_steps=", self.rollout_steps)
        require_at_most("counterfactual_stride=", self.counterfactual_stride)
        if self.envs < 1:
            raise EsperError(f"envs={self.envs}: a population needs at least 1 member")
        if self.rollout_steps is not None and self.rollout_steps < 1:
            raise EsperError(f"rollout_steps={self.rollout_steps}: must be 1 or more, or None")
        if self.counterfactual_stride < 1:
            raise EsperError(
                f"counterfactual_stride={self.counterfactual_stride}: must be 1 or more"
            )

    def check(self, spec: TaskSpec) -> None:
        """Raise if the settings do not fit the task."""
        if self.rollout_steps is not None and self.rollout_steps > spec.episode_length:
            raise EsperError(
                f"rollout_steps={self.rollout_steps}: an episode of {spec.name} has "
                f"{spec.episode_length} steps; take as many or fewer, or None for whole episodes"
            )
        heads = [head for head, _ in self.frozen_heads]
        for head in heads:
            if heads.count(head) > 1:
                raise EsperError(f"frozen head {head.name}: named twice, a head has one choice")
        check_frozen(dict(self.frozen_heads), len(spec.blueprints))

    def configure_graphs(self, agent: PPOAgent) -> None:
        """Run the agent eagerly, too, if `graphs` is off."""
        if self.graphs == "off":
            agent.use_graphs(None)

    def engine_config(self, seed: int) -> EngineConfig:
        """Convert to an `EngineConfig`."""
        from esper.tolaria.counterfactual_eval import CounterfactualConfig
        from esper.tolaria.engine_config import EngineConfig

        return EngineConfig(
            members=self.envs,
            seed=seed,
            rollout_steps=self.rollout_steps,
            counterfactuals=CounterfactualConfig(stride=self.counterfactual_stride),
            frozen_heads=self.frozen_heads,
            **self.compute(),
        )


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """All settings of a PPO training run."""

    task: Annotated[TaskConfig, NO_PREFIX] = field(default_factory=TaskConfig)
    """The task."""
    population: Annotated[PopulationConfig, NO_PREFIX] = field(default_factory=PopulationConfig)
    """The population."""
    rounds: int = 100
    """Training rounds; each is one episode per member, followed by an update."""
    seed: int = 0
    """Seed of all random draws: hosts, batches, actions, initial policy weights."""
    updates_per_rollout: int = 1
    """Update passes per rollout; the KL limit may end them early."""
    use_amp: bool = False
    """Run the encoder and core in bfloat16 during updates."""
    cut_stragglers: float | None = None
    """Under torchrun: once this share of the ranks has finished its rollout, the others end theirs
    early; results then depend on the speed of the machines. Default: never."""
    ppo: Annotated[PPOConfig, NO_PREFIX] = field(default_factory=PPOConfig)
    """PPO settings."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Reward settings."""

    def __post_init__(self) -> None:
        for name in ("rounds", "updates_per_rollout"):
            require_at_most(f"TrainingConfig.{name}=", getattr(self, name))
            if getattr(self, name) < 1:
                raise EsperError(f"TrainingConfig.{name}={getattr(self, name)}: must be 1 or more")
        require_training_seed(self.seed, "TrainingConfig.seed")
        self._check_cut()

    def _check_cut(self) -> None:
        share = self.cut_stragglers
        if share is None:
            return
        if not 0.0 < share < 1.0:
            raise EsperError(
                f"cut_stragglers={share}: must be above 0 and below 1, a share of the ranks"
            )
        if self.population.rollout_steps is not None:
            raise EsperError(
                f"cut_stragglers={share} with rollout_steps={self.population.rollout_steps}: a cut "
                f"ends the episodes of a rank, which must then be whole rollouts; set one of both"
            )

    @property
    def user_files(self) -> tuple[str, ...]:
        """References of files that hold code of the user's own: a task, a reward."""
        return tuple(name for name in (self.task.name, self.reward.own) if is_file_reference(name))

    def engine_config(self) -> EngineConfig:
        """Convert to an `EngineConfig`; raises on settings that cannot run."""
        return self.population.engine_config(self.seed)

    def check(self) -> TaskSpec:
        """Check the settings before anything is loaded; returns the task spec."""
        spec = self.task.spec()
        self.population.check(spec)
        return spec


# ---- presets ------------------------------------------------------------------------------------


def growing(rounds: int = 100) -> TrainingConfig:
    """The defaults, with `GROWING_PRIOR`; no frozen heads."""
    return TrainingConfig(rounds=rounds)


def plain(rounds: int = 100) -> TrainingConfig:
    """The defaults with an even prior: untrained, it prunes early and stops early."""
    network = NetworkConfig(op_prior=(0.0,) * len(LifecycleOp))
    return TrainingConfig(rounds=rounds, ppo=PPOConfig(network=network))


def digits_impaired(rounds: int = 100) -> TrainingConfig:
    """Digits on a host of 1x1 kernels: the first task to train a controller on.

    Three blueprints; the blending heads are frozen, so the policy learns what, where and when.
    Learning rate and entropy bonus decay over the run.
    """
    population = PopulationConfig(envs=16, counterfactual_stride=3, frozen_heads=PLAIN_BLEND)
    return TrainingConfig(
        task=TaskConfig("digits_impaired", blueprints=("depthwise", "conv_light", "conv_heavy")),
        population=population,
        rounds=rounds,
        ppo=_growing_ppo(),
    )


def digits_quick(rounds: int = 10) -> TrainingConfig:
    """`digits_impaired` at a quarter of the price of growth, for a demo of a few minutes.

    With cheap seeds, filling slots early pays off and is learnt fast: the initial policy germinates
    at every fourth step, and updates are larger.
    """
    base = digits_impaired(rounds)
    eager = (GROWING_PRIOR[0], 0.0, *GROWING_PRIOR[2:])
    ppo = replace(
        base.ppo,
        network=replace(base.ppo.network, op_prior=eager),
        learning_rate=replace(base.ppo.learning_rate, start=2e-3, end=1e-3),
        epochs=8,
    )
    return replace(base, task=replace(base.task, rent=0.25), ppo=ppo)


def cifar_baseline(rounds: int = 100) -> TrainingConfig:
    """CIFAR-10 on the host of 8-16-32 channels, for a GPU: all blueprints, 32 members.

    PPO settings as for digits. Profile `fast`, because runs are long and `exact` on a GPU needs
    an environment variable set before Python starts.
    """
    population = PopulationConfig(
        envs=32, profile="fast", counterfactual_stride=3, frozen_heads=PLAIN_BLEND
    )
    return TrainingConfig(
        task=TaskConfig("cifar_baseline"),
        population=population,
        rounds=rounds,
        ppo=_growing_ppo(),
    )


def _growing_ppo() -> PPOConfig:
    """PPO settings with decaying learning rate and entropy bonus."""
    heads = dict.fromkeys(ActionHead, 1.0)
    heads[ActionHead.OP] = 0.3  # leaving a slot empty takes WAIT at every step
    heads |= {ActionHead.SLOT: 0.3, ActionHead.BLUEPRINT: 0.2}  # used at few steps
    return PPOConfig(
        gae_lambda=0.98,
        learning_rate=Schedule(1e-3, 3e-4, WHOLE_RUN),
        epochs=5,
        entropy=Schedule(0.01, 0.001, WHOLE_RUN),
        head_entropy=tuple(heads.values()),
    )


PRESETS: Final[dict[str, Callable[[int], TrainingConfig]]] = {
    "growing": growing,
    "plain": plain,
    "digits_impaired": digits_impaired,
    "digits_quick": digits_quick,
    "cifar_baseline": cifar_baseline,
}
"""Preset functions by name; each takes the number of rounds."""
DEFAULT_PRESET: Final = "growing"
"""Preset of tasks that have none of their own."""


def preset_of_task(task: str) -> str:
    """Name of the preset of a task: the one named like it, else the default."""
    return task if task in PRESETS else DEFAULT_PRESET


def preset(name: str, rounds: int) -> TrainingConfig:
    """Return the preset; an unknown name raises and suggests the closest one."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name](rounds)
