"""Helpers for tests of client and trainer: tiny tasks, configs and trainers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from engine_support import small_task
from esper.leyline.actions import LifecycleOp
from esper.leyline.payloads import PPOUpdateMetrics
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.client import ActingMode, SimicClient, policy_spec
from esper.simic.rewards.score import ScoreReward
from esper.simic.telemetry.anomaly import AnomalyConfig
from esper.simic.training.config import PopulationConfig, TaskConfig, TrainingConfig
from esper.simic.training.history import RoundRecord
from esper.simic.training.vectorized import make_trainer, train_ppo_vectorized
from esper.simic.training.vectorized_trainer import VectorizedPPOTrainer
from esper.tamiyo import NetworkConfig
from esper.tasks.spec import TaskSpec

EVEN = (0.0,) * len(LifecycleOp)
SMALL = NetworkConfig(width=16, attention_heads=2, embedding=4, op_prior=EVEN)
"""With an even prior, so that a few short steps hold every operation."""

QUICK: dict[str, Any] = {"network": SMALL, "epochs": 2, "minibatches": 2}
"""Settings of PPO: few passes, which take most of the time of a tiny round."""

ANYTHING_GOES = AnomalyConfig(
    max_ratio=1e9, min_ratio=-1e9, max_kl=1e9, min_head_entropy=-1.0, min_value_spread=-1.0,
    min_explained_variance=-1e9, max_grad_norm=1e9, min_grad_norm=-1.0, max_dead_layers=1.0,
    hacking_deviations=1e9, max_degradation=1e9,
)  # fmt: skip
"""Nothing but numbers that are not finite is an anomaly: tiny runs are noise."""


def tiny_task(**changes: Any) -> TaskSpec:
    """One batch a step."""
    return small_task(**({"batches_per_step": 1, "episode_length": 8} | changes))


def small_agent(spec: TaskSpec, seed: int = 0, **ppo: Any) -> PPOAgent:
    return PPOAgent(policy_spec(), PPOConfig(**(QUICK | ppo)), seed)


def small_client(
    spec: TaskSpec, seed: int = 0, mode: ActingMode = ActingMode.LEARN, **ppo: Any
) -> SimicClient:
    return SimicClient(small_agent(spec, seed, **ppo), ScoreReward(spec.upkeep), mode)


def tiny_config(rounds: int = 2, seed: int = 0, **population: Any) -> TrainingConfig:
    """Four members, eight short steps; `tiny_task()` is the task that goes with it."""
    task = TaskConfig("synthetic", episode_length=8, batch_size=16, batches_per_step=1)
    people = PopulationConfig(**({"envs": 4, "device": "cpu"} | population))
    return TrainingConfig(task, people, rounds, seed, ppo=PPOConfig(**QUICK))


def tiny_trainer(config: TrainingConfig | None = None, **settings: Any) -> VectorizedPPOTrainer:
    return make_trainer(config or tiny_config(), spec=tiny_task(), **settings)


def tiny_run(config: TrainingConfig, **settings: Any) -> tuple[PPOAgent, list[RoundRecord]]:
    return train_ppo_vectorized(config, spec=tiny_task(), **settings)


def weights(agent: PPOAgent) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in agent.network.named_parameters()}


def same_agents(one: PPOAgent, two: PPOAgent) -> bool:
    """Weights, moments, running statistics and counters, bit for bit."""
    states = [it.optimizer.state_dict()["state"] for it in (one, two)]
    moments = [
        [value for key in sorted(state) for value in state[key].values()] for state in states
    ]
    arrays = [
        [*it.obs_normalizer.state().values(), *it.reward_normalizer.state().values()]
        for it in (one, two)
    ]
    return (
        all(
            torch.equal(a, b)
            for a, b in zip(weights(one).values(), weights(two).values(), strict=True)
        )
        and all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
        and all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
        and one.updates_done == two.updates_done
    )


def untimed(history: list[RoundRecord]) -> list[RoundRecord]:
    """The records without wall time, so that runs can be compared."""
    return [replace(record, rollout_seconds=0.0, update_seconds=0.0) for record in history]


def figures(metrics: PPOUpdateMetrics) -> dict[str, Any]:
    return {field.name: getattr(metrics, field.name) for field in fields(metrics)}
