"""Runs the PPO agent on discrete Gymnasium environments, to verify the learner.

The A actions of an environment become A slots with one-hot features, its observation the global
features, and ADVANCE the only legal operation: an action is a slot choice. Encoder, attention,
core, op and slot heads, masks, buffer and update are all exercised without special code
(docs/ppo.md). An `action_masks()` method of the environment is used as mask. Shape letters: E
parallel environments, A actions, G observation features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from esper.leyline.actions import ActionHead, LifecycleOp
from esper.leyline.arrays import Bools, Doubles, Floats
from esper.leyline.errors import EsperError
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import PPOUpdateMetrics
from esper.leyline.signals import NO_BLUEPRINT
from esper.leyline.streams import stream_seed
from esper.simic.agent.agent import PPOAgent
from esper.simic.agent.config import PPOConfig
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.inputs import FIXED_CHOICES, FIXED_SIZES, Observation
from esper.tamiyo.network_config import PolicySpec

Env = Any
"""A `gymnasium.Env`; gymnasium is an optional dependency."""
EnvFactory = Callable[[], Env]


@dataclass(frozen=True, slots=True, eq=False)
class EnvObservations:
    """Features and legal actions of all environments."""

    feature_EG: Floats
    legal_EA: Bools

    def as_inputs(self) -> tuple[Observation, ActionMasks]:
        """Convert to the agent's observation and masks."""
        members, actions = self.legal_EA.shape
        slot_ESF = np.broadcast_to(np.eye(actions, dtype=np.float32), (members, actions, actions))
        candidate_ESKD = np.zeros((members, actions, 1, 1), dtype=np.float32)
        blueprint_ES = np.full((members, actions), NO_BLUEPRINT, dtype=np.int64)
        op_EO = np.zeros((members, len(LifecycleOp)), dtype=bool)
        op_EO[:, LifecycleOp.ADVANCE] = True
        slot_EOS = np.zeros((members, len(LifecycleOp), actions), dtype=bool)
        slot_EOS[:, LifecycleOp.ADVANCE] = self.legal_EA
        blueprint_ESK = np.ones((members, actions, 1), dtype=bool)
        fixed = np.split(np.ones(FIXED_CHOICES, dtype=bool), np.cumsum(FIXED_SIZES)[:-1])
        obs = Observation(self.feature_EG, slot_ESF, candidate_ESKD, blueprint_ES)
        return obs, ActionMasks(op_EO, slot_EOS, blueprint_ESK, *fixed)


class EnvPlayer:
    """E copies of an environment and an agent that is trained on them."""

    def __init__(
        self,
        make_env: EnvFactory,
        members: int,
        steps: int,
        config: PPOConfig | None = None,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.make_env, self.seed = make_env, seed
        self.envs = [make_env() for _ in range(members)]
        self.actions = _action_count(self.envs[0])
        first = [env.reset(seed=_env_seed(seed, i))[0] for i, env in enumerate(self.envs)]
        self.observed = _observe(self.envs, first)
        spec = PolicySpec(self.observed.feature_EG.shape[1], self.actions, 1)
        self.agent = PPOAgent(spec, config, seed, device)
        self.rollout = self.agent.make_buffer(steps, members, self.actions, 1)
        self.state = self.agent.initial_state(members)
        self.rounds = 0
        self.running_return_E: Doubles = np.zeros(members)
        self.episode_returns: list[float] = []
        """Returns of all finished episodes, in order."""

    def learn(self, total_steps: int) -> list[PPOUpdateMetrics]:
        """Train for at least `total_steps` environment steps; returns the metrics of each round."""
        per_round = self.rollout.steps * self.rollout.members
        return [self.learn_round() for _ in range(-(-total_steps // per_round))]

    def learn_round(self) -> PPOUpdateMetrics:
        """One rollout and one update."""
        for step in range(self.rollout.steps):
            self._step(step)
        value_E = self.agent.value(*self.observed.as_inputs(), self.state)
        self.rollout.finish(value_E.astype(np.float64))
        self.rounds += 1
        return run_ppo_updates(self.agent, 1, self.rollout, self.agent.obs_normalizer)

    def _step(self, step: int) -> None:
        act = self.agent.act(*self.observed.as_inputs(), self.state, self.rounds, step)
        self.rollout.record(act.trace)
        action_E = act.decision.actions.of(ActionHead.SLOT)
        results = [env.step(int(a)) for env, a in zip(self.envs, action_E, strict=True)]
        reward_E = np.array([result[1] for result in results], dtype=np.float64)
        terminal_E = np.array([result[2] for result in results], dtype=bool)
        truncated_E = np.array([result[3] for result in results], dtype=bool) & ~terminal_E
        observations = [result[0] for result in results]
        bootstrap_E = None
        if truncated_E.any():
            beyond = _observe(self.envs, observations)
            bootstrap_E = self.agent.value(*beyond.as_inputs(), act.state).astype(np.float64)
        self.rollout.reward(reward_E, terminal_E, truncated_E, bootstrap_E)
        ended_E = terminal_E | truncated_E
        self._count(reward_E, ended_E)
        for i in np.flatnonzero(ended_E):
            observations[i] = self.envs[i].reset()[0]
        self.observed = _observe(self.envs, observations)
        self.state = self.agent.reset_state(act.state, ended_E)

    def _count(self, reward_E: Doubles, ended_E: Bools) -> None:
        self.running_return_E += reward_E
        self.episode_returns += self.running_return_E[ended_E].tolist()
        self.running_return_E[ended_E] = 0.0

    def evaluate(self, episodes: int, seed: int) -> Doubles:
        """Returns of greedy episodes on fresh environments."""
        envs = [self.make_env() for _ in range(episodes)]
        observations = [env.reset(seed=_env_seed(seed, i))[0] for i, env in enumerate(envs)]
        state = self.agent.initial_state(episodes)
        return_E, running_E = np.zeros(episodes), np.ones(episodes, dtype=bool)
        step = 0
        while running_E.any():
            inputs = _observe(envs, observations).as_inputs()
            act = self.agent.act(*inputs, state, self.rounds, step, greedy=True)
            for i in np.flatnonzero(running_E):
                action = int(act.decision.actions.slot[i])
                observations[i], reward, terminal, truncated, _ = envs[i].step(action)
                return_E[i] += reward
                running_E[i] = not (terminal or truncated)
            state, step = act.state, step + 1
        return return_E


def _action_count(env: Env) -> int:
    count = getattr(env.action_space, "n", None)
    if count is None or getattr(env.action_space, "start", 0) != 0:
        raise EsperError(f"action space {env.action_space}: only Discrete(n) from 0 is supported")
    return int(count)


def _env_seed(seed: int, member: int) -> int:
    return stream_seed(seed, "environment", member) & 0x7FFFFFFF


def _observe(envs: Sequence[Env], observations: Sequence[object]) -> EnvObservations:
    """Flatten observations to features (discrete ones as one-hot) and read the legal actions."""
    from gymnasium.spaces.utils import flatten

    space = envs[0].observation_space
    feature_EG = np.stack([np.asarray(flatten(space, x)) for x in observations]).astype(np.float32)
    everything = np.ones(_action_count(envs[0]), dtype=bool)
    legal = [getattr(env.unwrapped, "action_masks", lambda: everything)() for env in envs]
    return EnvObservations(feature_EG, np.asarray(legal, dtype=bool))
