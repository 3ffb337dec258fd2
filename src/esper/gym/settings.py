"""`EnvSettings`: keyword arguments of the environments, and the engine they describe.

gymnasium.make_vec("esper/digits_impaired-v0", num_envs=16, contexts="varied", rent=0.25)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from esper.leyline.compute import ComputeSettings
from esper.leyline.context import ContextSpec
from esper.leyline.errors import EsperError, shown, unknown_name
from esper.leyline.limits import is_integer
from esper.leyline.prices import ScoreConstants
from esper.leyline.protocols import RewardProtocol
from esper.simic.rewards.config import RewardConfig, RewardMode
from esper.simic.rewards.factory import make_reward
from esper.simic.training.config import PopulationConfig, TaskConfig
from esper.tamiyo.frozen_heads import Frozen, read_frozen
from esper.tasks.context_files import read_context
from esper.tasks.registry import get_task_spec
from esper.tasks.spec import TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings(ComputeSettings):
    """Settings of an environment; those that are None are the task's own."""

    contexts: str | ContextSpec | None = None
    """What differs between members and episodes: `fixed`, `planned`, `varied`, a JSON file or a
    `ContextSpec`. `planned` and `varied` begin episodes with a plan phase."""
    episode_length: int | None = None
    """Steps per episode."""
    batch_size: int | None = None
    """Samples per batch and member."""
    batches_per_step: int | None = None
    """Training batches per step."""
    blueprints: tuple[str, ...] = ()
    """Blueprints that may be grown; empty: all of the task's."""
    rent: float = 1.0
    """Factor on the price of growth."""
    score: ScoreConstants | None = None
    """Price of growth in the score, before `rent`."""
    data: Literal["files", "synthetic"] = "files"
    """`synthetic`: generated data of the same shape as the task's."""
    data_dir: str | Path | None = None
    """Folder of the data sets; None: $ESPER_DATA_DIR, then ./data."""
    reward: RewardMode | RewardConfig | RewardProtocol = "score"
    """Reward: a mode of docs/rewards.md, a `RewardConfig`, or a function of `RewardInputs`."""
    frozen_heads: Frozen | None = None
    """Action heads with one choice, by name: `{"style": "ADD", "tempo": 3}`. `plain` freezes how
    seeds blend, so that what, where and when is left to decide."""
    counterfactual_stride: int = 1
    """Steps between measurements of what seeds contribute."""
    activation_gradients: bool = True
    """Measure the gradients at the slots, an extra pass per step; without it, the feature is 0."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> EnvSettings:
        """Build from keyword arguments; an unknown one raises with the nearest valid name."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise unknown_name("setting", name, names, "of esper.gym")
        return cls(**given)

    def spec(self, task: str | TaskSpec) -> TaskSpec:
        """The task with these changes."""
        if not isinstance(task, str | TaskSpec):
            raise EsperError(f"task {shown(task)}: give the name of a task or a TaskSpec")
        spec = get_task_spec(task) if isinstance(task, str) else task
        if self.score is not None:
            spec = replace(spec, score=self.score)
        changes = TaskConfig(
            name=spec.name,
            blueprints=_names(self.blueprints),
            episode_length=self.episode_length,
            batch_size=self.batch_size,
            batches_per_step=self.batches_per_step,
            rent=self.rent,
            data=self.data,
            contexts=_contexts(self.contexts),
        )
        return changes.applied_to(spec)

    def population(self, spec: TaskSpec, members: int) -> PopulationConfig:
        """Settings of the members, checked against the task."""
        if not is_integer(members) or members < 1:
            raise EsperError(f"num_envs={shown(members)}: must be an integer, 1 or more")
        population = PopulationConfig(
            envs=int(members),
            counterfactual_stride=self.counterfactual_stride,
            frozen_heads=read_frozen(self.frozen_heads, spec.blueprints),
            **self.compute(),
        )
        population.check(spec)
        return population

    def make_reward(self, spec: TaskSpec) -> RewardProtocol:
        """The reward of an episode."""
        reward = self.reward
        if isinstance(reward, str):
            reward = RewardConfig(mode=reward)
        if isinstance(reward, RewardConfig):
            if reward.wait_baseline:
                raise EsperError("reward wait_baseline: not measured by esper.gym; leave it out")
            return make_reward(reward, spec.upkeep)
        if not callable(reward):
            raise EsperError(f"reward {shown(reward)}: give a mode, a RewardConfig or a function")
        return reward


def _names(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        raise EsperError(f"blueprints={given!r}: give a tuple, as in ({given!r},)")
    return tuple(given)


def _contexts(given: str | ContextSpec | None) -> ContextSpec | None:
    if given is None or isinstance(given, ContextSpec):
        return given
    if isinstance(given, str):
        return read_context(given)
    raise EsperError(f"contexts={shown(given)}: give a name, a JSON file or a ContextSpec")
