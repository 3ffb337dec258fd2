"""The entry point of the learner: a config in, a trained agent and its history out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.simic.training.config import TrainingConfig

if TYPE_CHECKING:
    from esper.leyline.protocols import EngineListener, RewardProtocol
    from esper.simic.agent.agent import PPOAgent
    from esper.simic.telemetry.listener import TelemetryListener
    from esper.simic.training.history import RoundRecord
    from esper.simic.training.vectorized_trainer import RoundHook, VectorizedPPOTrainer
    from esper.tasks.spec import TaskData, TaskSpec


def train_ppo_vectorized(
    config: TrainingConfig | None = None,
    *,
    reward: RewardProtocol | None = None,
    listeners: Sequence[TelemetryListener] = (),
    hooks: Sequence[RoundHook] = (),
    spec: TaskSpec | None = None,
    data: TaskData | None = None,
) -> tuple[PPOAgent, list[RoundRecord]]:
    """Train a controller; the agent, and a record of each round.

    `reward` stands in for the config's; `spec` for the task the config names, `data` for what the
    task would load.

    >>> from esper.simic.training.config import PopulationConfig, TaskConfig
    >>> task = TaskConfig("synthetic", episode_length=4, batches_per_step=1)
    >>> config = TrainingConfig(task, PopulationConfig(envs=2, device="cpu"), rounds=1)
    >>> agent, history = train_ppo_vectorized(config)
    >>> agent.updates_done, history[0].steps
    (1, 4)
    """
    trainer = make_trainer(config, reward=reward, hooks=hooks, spec=spec, data=data)
    trainer.listen(listeners)
    history = trainer.run()
    return trainer.client.agent, history


def make_trainer(
    config: TrainingConfig | None = None,
    *,
    reward: RewardProtocol | None = None,
    hooks: Sequence[RoundHook] = (),
    spec: TaskSpec | None = None,
    data: TaskData | None = None,
    listener: EngineListener | None = None,
) -> VectorizedPPOTrainer:
    """Engine, agent, client and trainer of a run, ready to go.

    For callers who want a hand on them; `listener` hears everything the engine tells.
    """
    from esper.simic.agent.agent import PPOAgent
    from esper.simic.client import SimicClient, policy_spec
    from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
    from esper.tolaria.engine import VectorizedEngine

    config = config or TrainingConfig()
    spec = spec or config.task.spec()
    engine = VectorizedEngine(spec, config.engine_config(), listener, data)
    agent = PPOAgent(
        policy_spec(engine.env.model.blueprints), config.ppo, config.seed, engine.device
    )
    config.population.choose_graphs(agent)
    client = SimicClient(
        agent,
        reward or _reward(config, spec, data),
        updates_per_rollout=config.updates_per_rollout,
        use_amp=config.use_amp,
    )
    return VectorizedPPOTrainer(engine, client, config.rounds, hooks=hooks)


def _reward(config: TrainingConfig, spec: TaskSpec, data: TaskData | None) -> RewardProtocol:
    """What the config pays; the curve of waiting is measured where it asks for it."""
    from esper.simic.rewards.factory import make_reward
    from esper.simic.training.baseline import wait_curve

    curve = None
    if config.reward.wait_baseline:
        curve = wait_curve(spec, config.engine_config(), data)
    return make_reward(config.reward, spec.upkeep, curve)
