"""`run_ppo_updates`: passes, normalisers, metrics, and the cleared rollout."""

import numpy as np

from esper.simic.training.runner import run_ppo_updates
from ppo_support import K, S, agent, fill, random_obs

E, T = 4, 5


def made(**settings):
    it = agent(**settings)
    rollout = it.make_buffer(T, E, S, K)
    fill(it, rollout)
    return it, rollout


def test_the_rollout_is_forgotten_afterwards():
    it, rollout = made()
    run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert rollout.filled == 0
    fill(it, rollout, round_index=1)


def test_observations_count_from_the_next_rollout_on():
    """Within a rollout the statistics do not move, so it is all normalised alike."""
    it, rollout = made()
    obs = random_obs(np.random.default_rng(9), E)
    before = it.obs_normalizer.normalize(obs)
    assert it.obs_normalizer.parts["global"].count == 0
    run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    assert it.obs_normalizer.parts["global"].count == T * E
    assert it.obs_normalizer.parts["slot"].count == T * E * S
    assert np.abs(it.obs_normalizer.normalize(obs).global_EG - before.global_EG).max() > 0.01


def test_rewards_count_once_whatever_the_passes():
    it, rollout = made()
    run_ppo_updates(it, 3, rollout, it.obs_normalizer)
    assert it.reward_normalizer.seen.count == T * E
    assert it.updates_done == 3


def test_normalisers_can_be_left_out():
    it, rollout = made(normalize_observations=False, normalize_rewards=False)
    obs = random_obs(np.random.default_rng(9), E)
    act = it.act(obs, _masks(), it.initial_state(E), 0, 0)
    assert np.array_equal(act.trace.inputs.global_G.numpy(), obs.global_EG)
    run_ppo_updates(it, 1, rollout, None)
    assert it.obs_normalizer.parts["global"].count == it.reward_normalizer.seen.count == 0


def _masks():
    from ppo_support import random_masks

    return random_masks(np.random.default_rng(0), E)
