"""The same agent on ordinary problems: discrete Gymnasium environments, for proof.

An environment's A actions are A slots, each known by a one-hot feature, its observation is the
global features, and ADVANCE is the one legal operation: acting is pointing at a slot. So encoder,
attention, core, op and slot head, masks, buffer and update are all at work, with no line of their
own for it (`docs/ppo.md` says more). An environment with an `action_masks()` method is masked by
it. Shape letters: E environments side by side, A actions, G features of an observation.
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
"""A `gymnasium.Env`, which comes with an extra."""
EnvFactory = Callable[[], Env]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What all environments show: features, and which actions are legal."""

    feature_EG: Floats
    legal_EA: Bools

    def as_inputs(self) -> tuple[Observation, ActionMasks]:
        """The same in the agent's words."""
        members, actions = self.legal_EA.shape
        slot_ESF = np.broadcast_to(np.eye(actions, dtype=np.float32), (members, actions, actions))
        standing_ES = np.full((members, actions), NO_BLUEPRINT, dtype=np.int64)
        op_EO = np.zeros((members, len(LifecycleOp)), dtype=bool)
        op_EO[:, LifecycleOp.ADVANCE] = True
        slot_EOS = np.zeros((members, len(LifecycleOp), actions), dtype=bool)
        slot_EOS[:, LifecycleOp.ADVANCE] = self.legal_EA
        blueprint_SK = np.ones((actions, 1), dtype=bool)
        fixed = np.split(np.ones(FIXED_CHOICES, dtype=bool), np.cumsum(FIXED_SIZES)[:-1])
        obs = Observation(self.feature_EG, slot_ESF, standing_ES)
        return obs, ActionMasks(op_EO, slot_EOS, blueprint_SK, *fixed)


class EnvPlayer:
    """E copies of an environment and an agent that learns to play them."""

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
        self.seen = _look(self.envs, first)
        spec = PolicySpec(self.seen.feature_EG.shape[1], self.actions, ("none",))
        self.agent = PPOAgent(spec, config, seed, device)
        self.rollout = self.agent.make_buffer(steps, members, self.actions)
        self.state = self.agent.initial_state(members)
        self.rounds = 0
        self.running_return_E: Doubles = np.zeros(members)
        self.episode_returns: list[float] = []
        """Of every episode that has ended, in order."""

    def learn(self, total_steps: int) -> list[PPOUpdateMetrics]:
        """Play and update until at least so many environment steps were taken; figures of each."""
        per_round = self.rollout.steps * self.rollout.members
        return [self.learn_round() for _ in range(-(-total_steps // per_round))]

    def learn_round(self) -> PPOUpdateMetrics:
        """One rollout and one update."""
        for step in range(self.rollout.steps):
            self._step(step)
        value_E = self.agent.value(*self.seen.as_inputs(), self.state)
        self.rollout.finish(value_E.astype(np.float64))
        self.rounds += 1
        return run_ppo_updates(self.agent, 1, self.rollout, self.agent.obs_normalizer)

    def _step(self, step: int) -> None:
        act = self.agent.act(*self.seen.as_inputs(), self.state, self.rounds, step)
        self.rollout.record(act.trace)
        pointed_E = act.decision.actions.of(ActionHead.SLOT)
        answers = [env.step(int(a)) for env, a in zip(self.envs, pointed_E, strict=True)]
        reward_E = np.array([answer[1] for answer in answers], dtype=np.float64)
        terminal_E = np.array([answer[2] for answer in answers], dtype=bool)
        truncated_E = np.array([answer[3] for answer in answers], dtype=bool) & ~terminal_E
        shown = [answer[0] for answer in answers]
        bootstrap_E = None
        if truncated_E.any():
            beyond = _look(self.envs, shown)
            bootstrap_E = self.agent.value(*beyond.as_inputs(), act.state).astype(np.float64)
        self.rollout.reward(reward_E, terminal_E, truncated_E, bootstrap_E)
        ended_E = terminal_E | truncated_E
        self._count(reward_E, ended_E)
        for i in np.flatnonzero(ended_E):
            shown[i] = self.envs[i].reset()[0]
        self.seen = _look(self.envs, shown)
        self.state = self.agent.reset_state(act.state, ended_E)

    def _count(self, reward_E: Doubles, ended_E: Bools) -> None:
        self.running_return_E += reward_E
        self.episode_returns += self.running_return_E[ended_E].tolist()
        self.running_return_E[ended_E] = 0.0

    def evaluate(self, episodes: int, seed: int) -> Doubles:
        """Returns of so many episodes, played greedily side by side on fresh environments."""
        envs = [self.make_env() for _ in range(episodes)]
        shown = [env.reset(seed=_env_seed(seed, i))[0] for i, env in enumerate(envs)]
        state = self.agent.initial_state(episodes)
        return_E, running_E = np.zeros(episodes), np.ones(episodes, dtype=bool)
        step = 0
        while running_E.any():
            inputs = _look(envs, shown).as_inputs()
            act = self.agent.act(*inputs, state, self.rounds, step, greedy=True)
            for i in np.flatnonzero(running_E):
                action = int(act.decision.actions.slot[i])
                shown[i], reward, terminal, truncated, _ = envs[i].step(action)
                return_E[i] += reward
                running_E[i] = not (terminal or truncated)
            state, step = act.state, step + 1
        return return_E


def _action_count(env: Env) -> int:
    count = getattr(env.action_space, "n", None)
    if count is None or getattr(env.action_space, "start", 0) != 0:
        raise EsperError(f"action space {env.action_space}: only Discrete(n) from 0 can be played")
    return int(count)


def _env_seed(seed: int, member: int) -> int:
    return stream_seed(seed, "environment", member) & 0x7FFFFFFF


def _look(envs: Sequence[Env], shown: Sequence[object]) -> Seen:
    """Observations as flat features (discrete ones as one-hot), and what is legal now."""
    from gymnasium.spaces.utils import flatten

    space = envs[0].observation_space
    feature_EG = np.stack([np.asarray(flatten(space, x)) for x in shown]).astype(np.float32)
    everything = np.ones(_action_count(envs[0]), dtype=bool)
    legal = [getattr(env.unwrapped, "action_masks", lambda: everything)() for env in envs]
    return Seen(feature_EG, np.asarray(legal, dtype=bool))
