"""What is a run of the learner set to? Nested frozen dataclasses; presets are functions.

No torch here, so that a command line can show it quickly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from esper.leyline.actions import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    TEMPOS,
    ActionHead,
    AlphaCurve,
    BlendStyle,
)
from esper.leyline.errors import EsperError, unknown_name
from esper.leyline.seeds import require_training_seed
from esper.simic.agent.config import PPOConfig
from esper.simic.training.schedules import Schedule
from esper.tamiyo.network_config import NetworkConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from esper.leyline.protocols import RewardProtocol
    from esper.tasks.spec import TaskSpec
    from esper.tolaria.engine import EngineConfig

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

    name: str = "digits_impaired"
    """Name of a registered task."""
    blueprints: tuple[str, ...] = ()
    """Blueprints that may be grown; all of the task's where none are given."""
    episode_length: int | None = None
    """Steps of an episode; the task's own where not given."""
    batch_size: int | None = None
    """Samples in a batch of each member; the task's own where not given."""
    batches_per_step: int | None = None
    """Train batches in a step; the task's own where not given."""

    def spec(self) -> TaskSpec:
        """The task with what is changed about it."""
        from esper.tasks.registry import get_task_spec

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
        return replace(spec, **changes)


@dataclass(frozen=True, slots=True)
class PopulationConfig:
    """How the hosts are run that the controller learns on."""

    envs: int = 16
    """E: members that train side by side; E episodes make a round."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:<number>`; `auto` takes a GPU where there is one."""
    profile: Literal["exact", "fast"] = "exact"
    """`exact`: bit-identical runs; `fast` may reorder sums and picks the faster executor."""
    executor: Literal["auto", "vmap", "loop"] = "auto"
    """`vmap` computes all members at once, `loop` one after the other."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """What members are computed in; `auto` is bf16 on a GPU that has it."""
    data_placement: Literal["auto", "device", "stream"] = "auto"
    """Where training data lie: on the device, or on the host and streamed."""
    rollout_steps: int | None = None
    """Steps between updates; None: whole episodes."""
    counterfactual_stride: int = 1
    """Steps from one measurement of what seeds are worth to the next."""
    frozen_heads: FrozenHeads = ()
    """Action heads with one choice only: (head, index of the choice)."""


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """What the controller is paid."""

    rollback_penalty: float = 0.1
    """Taken off where the governor set a member back, in score."""

    def build(self, spec: TaskSpec) -> RewardProtocol:
        """The reward for a task: the change of its score, less upkeep by its own rule."""
        from esper.simic.rewards.score import ScoreReward

        return ScoreReward(spec.upkeep, self.rollback_penalty)


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Everything a run of the learner depends on."""

    task: TaskConfig = field(default_factory=TaskConfig)
    """What is trained on."""
    population: PopulationConfig = field(default_factory=PopulationConfig)
    """How the hosts are run."""
    rounds: int = 100
    """Episodes of each member, one after the other; a round ends with an update."""
    seed: int = 0
    """Every random draw follows from it: hosts, batches, actions, the policy's first weights."""
    updates_per_rollout: int = 1
    """Update passes over each rollout; the KL limit may end them early."""
    use_amp: bool = False
    """Run encoder and core of the update in bfloat16."""
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """How the controller learns."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What it is paid."""

    def __post_init__(self) -> None:
        for name in ("rounds", "updates_per_rollout"):
            if getattr(self, name) < 1:
                raise EsperError(f"TrainingConfig.{name}={getattr(self, name)}: must be 1 or more")
        require_training_seed(self.seed, "TrainingConfig.seed")

    def engine_config(self) -> EngineConfig:
        """The settings in the engine's words; it refuses what cannot be run."""
        from esper.tolaria.counterfactual_eval import CounterfactualConfig
        from esper.tolaria.engine import EngineConfig

        population = self.population
        return EngineConfig(
            members=population.envs,
            seed=self.seed,
            device=population.device,
            profile=population.profile,
            executor=population.executor,
            precision=population.precision,
            data_placement=population.data_placement,
            rollout_steps=population.rollout_steps,
            counterfactuals=CounterfactualConfig(stride=population.counterfactual_stride),
            frozen_heads=population.frozen_heads,
        )


# ---- presets -------------------------------------------------------------------------------------


def plain(rounds: int = 100) -> TrainingConfig:
    """The defaults, every head free."""
    return TrainingConfig(rounds=rounds)


GROWING_PRIOR: Final = (1.0, 0.0, 2.0, -2.0, -3.0, 0.0)
"""A fresh policy that lets seeds live: it waits and advances readily and seldom prunes. Under even
chances nearly every seed is pruned within a few steps, long before it pays, and what is learnt
first is to prune (docs/ppo.md)."""


def digits_impaired(rounds: int = 100) -> TrainingConfig:
    """Digits on a host of 1x1 kernels, the first thing a controller is taught.

    Two blueprints, and the heads that say how a seed is blended are frozen: where and when is left
    to learn. Learning rate and entropy bonus fall over the run.
    """
    heads = dict.fromkeys(ActionHead, 1.0)
    heads |= {ActionHead.SLOT: 0.3, ActionHead.BLUEPRINT: 0.2}  # they count at few steps
    ppo = PPOConfig(
        network=NetworkConfig(op_prior=GROWING_PRIOR),
        gae_lambda=0.98,
        learning_rate=Schedule(2e-3, 5e-4, rounds),
        epochs=8,
        entropy=Schedule(0.01, 0.001, rounds),
        head_entropy=tuple(heads.values()),
    )
    return TrainingConfig(
        task=TaskConfig("digits_impaired", blueprints=("depthwise", "conv_light")),
        population=PopulationConfig(envs=16, counterfactual_stride=3, frozen_heads=PLAIN_BLEND),
        rounds=rounds,
        ppo=ppo,
    )


PRESETS: Final[dict[str, Callable[[int], TrainingConfig]]] = {
    "digits_impaired": digits_impaired,
    "plain": plain,
}
"""By name; each takes the number of rounds, which its schedules run over."""


def preset(name: str, rounds: int) -> TrainingConfig:
    """The preset of that name; an unknown one is refused with the nearest valid name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name](rounds)
