"""Our own PPO through Gymnasium's interface makes the update that it makes in the engine."""

# ruff: noqa: E402  # what follows needs gymnasium

from __future__ import annotations

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")

from esper.gym.vector_env import EsperVectorEnv
from esper.leyline.actions import ActionHead
from esper.simic.agent.agent import PPOAgent
from esper.simic.agent.config import PPOConfig
from esper.simic.client import SimicClient, policy_spec
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.inputs import Observation
from esper.tamiyo.network_config import NetworkConfig
from esper.tolaria.engine import VectorizedEngine
from gym_support import DRAWN, read_mask_arrays, tiny_env

MEMBERS, SEED = 3, 5


def small_agent() -> PPOAgent:
    network = NetworkConfig(width=16, attention_heads=2, embedding=4)
    return PPOAgent(policy_spec(), PPOConfig(network=network, epochs=2), SEED, "cpu")


def learn_by_gym(env: EsperVectorEnv, agent: PPOAgent) -> None:
    """One episode and one update, with what reset and step return and nothing else."""
    obs, info = env.reset(seed=SEED)
    slots, blueprints = obs["candidates"].shape[1:3]
    length = env.task.episode_length
    buffer = agent.make_buffer(length + slots, MEMBERS, slots, blueprints)
    state, over = agent.initial_state(MEMBERS), False
    planned = 0
    while not over:
        seen = Observation(obs["global"], obs["slots"], obs["candidates"], obs["blueprints"] - 1)
        masks = read_mask_arrays(info["action_mask"])
        planning = bool(info["planning"][0])
        index = length + planned if planning else int(info["step"][0])
        planned += planning
        act = agent.act(seen, masks, state, 0, index)
        buffer.record(act.trace)
        heads_EA = np.stack([act.decision.actions.of(head) for head in ActionHead], axis=1)
        obs, reward_E, terminated_E, _, info = env.step(heads_EA)
        back_E = info["rolled_back"]
        buffer.reward(reward_E, terminated_E | back_E, void_E=back_E)
        state, over = agent.reset_state(act.state, back_E), bool(terminated_E.all())
    buffer.finish(np.zeros(MEMBERS))
    run_ppo_updates(agent, 1, buffer, agent.obs_normalizer)


def test_the_first_update_through_gymnasium_is_that_of_the_engine():
    env, agent = tiny_env(MEMBERS, DRAWN), small_agent()
    learn_by_gym(env, agent)
    engine = VectorizedEngine(env.task, env.population.engine_config(SEED))
    client = SimicClient(small_agent(), ScoreReward(env.task.upkeep))
    client.update(engine.run_rollout(client))
    left, right = agent.network.state_dict(), client.agent.network.state_dict()
    fresh = small_agent().network.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not all(torch.equal(left[name], fresh[name]) for name in left)
