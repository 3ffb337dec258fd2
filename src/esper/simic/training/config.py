"""What is a run of the learner set to? Nested frozen dataclasses; presets are functions.

No torch here, so that a command line can show it quickly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    TEMPOS,
    ActionHead,
    AlphaCurve,
    BlendStyle,
)
from esper.leyline.codec import ALWAYS_WRITTEN
from esper.leyline.compute import ComputeSettings
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.limits import (
    MAX_BATCHES_PER_STEP,
    MAX_EPISODE_LENGTH,
    MAX_MEMBERS,
    require_at_most,
)
from esper.leyline.seeds import require_training_seed
from esper.simic.agent.config import NO_PREFIX, PPOConfig
from esper.simic.rewards.config import RewardConfig
from esper.simic.training.schedules import WHOLE_RUN, Schedule
from esper.tamiyo.masks import check_frozen
from esper.tamiyo.network_config import NetworkConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper.simic.agent.agent import PPOAgent
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine_config import EngineConfig

FrozenHeads = tuple[tuple[ActionHead, int], ...]

PLAIN_BLEND: Final[FrozenHeads] = (
    (ActionHead.STYLE, int(BlendStyle.ADD)),
    (ActionHead.TEMPO, TEMPOS.index(3)),
    (ActionHead.ALPHA_TARGET, ALPHA_TARGETS.index(1.0)),
    (ActionHead.ALPHA_SPEED, ALPHA_SPEEDS.index(0)),
    (ActionHead.ALPHA_CURVE, int(AlphaCurve.LINEAR)),
)
"""Seeds are added, blended in fully within three steps and pruned at once: what to grow, where and
when is left to choose."""


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """What is trained on, and for how long."""

    name: Annotated[str, tyro.conf.arg(name="task")] = field(
        default="digits_impaired", metadata=ALWAYS_WRITTEN
    )
    """What is trained on: a task that `esper tasks` lists, or your own as FILE.py[:NAME]."""
    blueprints: tuple[str, ...] = ()
    """Blueprints that may be grown; all of the task's where none are given."""
    episode_length: int | None = None
    """Steps of an episode; the task's own where not given."""
    batch_size: int | None = None
    """Samples in a batch of each member; the task's own where not given."""
    batches_per_step: int | None = None
    """Train batches in a step; the task's own where not given."""
    rent: float = 1.0
    """What growth costs: multiplies the task's score constants (parameters, MACs, FLOPs)."""
    data: Literal["files", "synthetic"] = "files"
    """files: the task's own data; synthetic: made-up data of the same shape."""

    def __post_init__(self) -> None:
        require_at_most("episode_length=", self.episode_length, MAX_EPISODE_LENGTH)
        require_at_most("batch_size=", self.batch_size)
        require_at_most("batches_per_step=", self.batches_per_step, MAX_BATCHES_PER_STEP)
        if not 0 <= self.rent < math.inf:
            raise EsperError(f"rent={self.rent}: must be 0 or more, and finite")

    def spec(self) -> TaskSpec:
        """The task with what is changed about it."""
        from esper.tasks.registry import get_task_spec
        from esper.tasks.synthetic_data import with_synthetic_data

        spec = get_task_spec(self.name)
        for blueprint in self.blueprints:
            if blueprint not in spec.blueprints:
                raise unknown_name("blueprint", blueprint, spec.blueprints, f"of {self.name}")
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("episode_length", "batch_size", "batches_per_step")
            if getattr(self, name) is not None
        }
        if self.blueprints:
            changes["blueprints"] = self.blueprints
        prices = {c: self.rent * getattr(spec.score, c) for c in ("c_p", "c_m", "c_f")}
        spec = replace(spec, **changes, score=replace(spec.score, **prices))
        return with_synthetic_data(spec) if self.data == "synthetic" else spec


@dataclass(frozen=True, slots=True)
class PopulationConfig(ComputeSettings):
    """How the hosts are run that the controller learns on."""

    envs: int = field(default=16, metadata=ALWAYS_WRITTEN)
    """E: members that train side by side; E episodes make a round."""
    rollout_steps: int | None = None
    """Steps between updates; None: whole episodes."""
    counterfactual_stride: int = 1
    """Steps from one measurement of what seeds are worth to the next."""
    frozen_heads: FrozenHeads = ()
    """Action heads with one choice only: (head, index of the choice)."""

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
        """Refuse settings that do not go with a task."""
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

    def choose_graphs(self, agent: PPOAgent) -> None:
        """Where graphs are off, the agent's steps run eagerly, too."""
        if self.graphs == "off":
            agent.use_graphs(None)

    def engine_config(self, seed: int) -> EngineConfig:
        """The settings in the engine's words."""
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
    """Everything a run of the learner depends on."""

    task: Annotated[TaskConfig, NO_PREFIX] = field(
        default_factory=TaskConfig, metadata=ALWAYS_WRITTEN
    )
    """What is trained on."""
    population: Annotated[PopulationConfig, NO_PREFIX] = field(
        default_factory=PopulationConfig, metadata=ALWAYS_WRITTEN
    )
    """How the hosts are run."""
    rounds: int = field(default=100, metadata=ALWAYS_WRITTEN)
    """Episodes of each member, one after the other; a round ends with an update."""
    seed: int = field(default=0, metadata=ALWAYS_WRITTEN)
    """Every random draw follows from it: hosts, batches, actions, the policy's first weights."""
    updates_per_rollout: int = 1
    """Update passes over each rollout; the KL limit may end them early."""
    use_amp: bool = False
    """Run encoder and core of the update in bfloat16."""
    ppo: Annotated[PPOConfig, NO_PREFIX] = field(default_factory=PPOConfig, metadata=ALWAYS_WRITTEN)
    """How the controller learns."""
    reward: RewardConfig = field(default_factory=RewardConfig, metadata=ALWAYS_WRITTEN)
    """What it is paid."""

    def __post_init__(self) -> None:
        for name in ("rounds", "updates_per_rollout"):
            require_at_most(f"TrainingConfig.{name}=", getattr(self, name))
            if getattr(self, name) < 1:
                raise EsperError(f"TrainingConfig.{name}={getattr(self, name)}: must be 1 or more")
        require_training_seed(self.seed, "TrainingConfig.seed")

    def engine_config(self) -> EngineConfig:
        """The settings in the engine's words; it refuses what cannot be run."""
        return self.population.engine_config(self.seed)

    def check(self) -> TaskSpec:
        """Refuse what no run could be set to, before anything is loaded; the task."""
        spec = self.task.spec()
        self.population.check(spec)
        return spec


# ---- presets ------------------------------------------------------------------------------------


def plain(rounds: int = 100) -> TrainingConfig:
    """The defaults, every head free."""
    return TrainingConfig(rounds=rounds)


GROWING_PRIOR: Final = (1.0, -1.0, 2.0, -2.0, -3.0, 0.0)
"""A fresh policy that lets seeds live: it waits and advances readily and seldom prunes. Under even
chances nearly every seed is pruned within a few steps, long before it pays, and what is learnt
first is to prune. It germinates at about one step in ten: more often, and every slot is filled
early whatever it learns; more seldom, and most seeds come too late to pay (docs/ppo.md)."""


def digits_impaired(rounds: int = 100) -> TrainingConfig:
    """Digits on a host of 1x1 kernels, the first thing a controller is taught.

    Three blueprints, and the heads that say how a seed is blended are frozen: what, where and when
    is left to learn. Learning rate and entropy bonus fall over the run.
    """
    population = PopulationConfig(envs=16, counterfactual_stride=3, frozen_heads=PLAIN_BLEND)
    return TrainingConfig(
        task=TaskConfig("digits_impaired", blueprints=("depthwise", "conv_light", "conv_heavy")),
        population=population,
        rounds=rounds,
        ppo=_growing(),
    )


def digits_quick(rounds: int = 10) -> TrainingConfig:
    """The same at a quarter of the price of growth, for a first look of a few minutes.

    Where seeds cost little, filling slots early pays and is soon found: the fresh policy germinates
    at every fourth step, and updates go further.
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

    The learner is set as for digits; `fast`, because the runs are long and a GPU has to be asked
    for exact sums before Python starts.
    """
    population = PopulationConfig(
        envs=32, profile="fast", counterfactual_stride=3, frozen_heads=PLAIN_BLEND
    )
    return TrainingConfig(
        task=TaskConfig("cifar_baseline"),
        population=population,
        rounds=rounds,
        ppo=_growing(),
    )


def _growing() -> PPOConfig:
    """A learner that starts from `GROWING_PRIOR` and settles down over the run."""
    heads = dict.fromkeys(ActionHead, 1.0)
    heads[ActionHead.OP] = 0.3  # to leave a slot empty is to wait, and wait again
    heads |= {ActionHead.SLOT: 0.3, ActionHead.BLUEPRINT: 0.2}  # they count at few steps
    return PPOConfig(
        network=NetworkConfig(op_prior=GROWING_PRIOR),
        gae_lambda=0.98,
        learning_rate=Schedule(1e-3, 3e-4, WHOLE_RUN),
        epochs=5,
        entropy=Schedule(0.01, 0.001, WHOLE_RUN),
        head_entropy=tuple(heads.values()),
    )


PRESETS: Final[dict[str, Callable[[int], TrainingConfig]]] = {
    "plain": plain,
    "digits_impaired": digits_impaired,
    "digits_quick": digits_quick,
    "cifar_baseline": cifar_baseline,
}
"""By name; each takes the number of rounds."""


def preset(name: str, rounds: int) -> TrainingConfig:
    """The preset of that name; an unknown one is refused with the nearest valid name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name](rounds)
