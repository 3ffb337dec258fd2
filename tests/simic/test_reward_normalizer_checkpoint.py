"""A resumed run scales rewards as if uninterrupted, also in the middle of episodes."""

import numpy as np
import pytest

from esper.simic.agent import PPOAgent
from esper.simic.control import RewardNormalizer
from esper.simic.training.runner import run_ppo_updates
from ppo_support import K, S, agent, fill

E, T = 3, 6


def rollout(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(T, E)) + 0.3, rng.random((T, E)) < 0.2


def test_restored_statistics_continue_bit_for_bit():
    straight, first, second = (RewardNormalizer(0.99) for _ in range(3))
    for seed in range(4):
        straight.update(*rollout(seed))
    for seed in range(2):
        first.update(*rollout(seed))
    second.restore(first.state())
    for seed in range(2, 4):
        second.update(*rollout(seed))
    assert second.scale == straight.scale
    assert second.return_E.tolist() == straight.return_E.tolist()


def test_returns_of_running_episodes_are_part_of_the_state():
    """Without them the first rewards after a load would be taken for those of fresh episodes."""
    first, second = RewardNormalizer(1.0), RewardNormalizer(1.0)
    first.update(np.ones((T, E)), np.zeros((T, E), dtype=bool))
    second.restore(first.state())
    assert second.return_E.tolist() == [T] * E


def test_a_state_is_a_copy():
    first = RewardNormalizer(1.0)
    first.update(*rollout(0))
    state = first.state()
    kept = {name: array.copy() for name, array in state.items()}
    first.update(*rollout(1))
    assert all(np.array_equal(state[name], kept[name]) for name in state)


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_agent_saves_and_loads_its_reward_scale(tmp_path, rounds):
    it = agent()
    buffer = it.make_buffer(T, E, S, K)
    for round_index in range(rounds):
        fill(it, buffer, round_index)
        run_ppo_updates(it, 1, buffer, it.obs_normalizer)
    it.save(tmp_path)
    loaded = PPOAgent.load(tmp_path)
    assert (it.reward_normalizer.scale != 1.0) == bool(rounds)
    assert loaded.reward_normalizer.scale == it.reward_normalizer.scale
    assert loaded.reward_normalizer.return_E.tolist() == it.reward_normalizer.return_E.tolist()
    reward, ended = rollout(9)
    for each in (it, loaded):
        each.reward_normalizer.update(reward, ended)
    found = loaded.reward_normalizer.normalize(reward)
    assert found.tolist() == it.reward_normalizer.normalize(reward).tolist()
