"""One member as a plain environment: Gymnasium's checker passes, and it is the vector's member."""

# ruff: noqa: E402  # what follows needs gymnasium

from __future__ import annotations

import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")

from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from esper.gym.flat_env import flat
from esper.gym.single_env import EsperEnv
from esper.leyline import EsperError
from gym_support import DRAWN, flat_env, play, same, tiny_task


def single(contexts=None, **settings) -> EsperEnv:
    return EsperEnv(tiny_task(contexts), device="cpu", executor="loop", **settings)


def test_gymnasiums_checker_passes_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(single(), skip_render_check=True)


@pytest.mark.filterwarnings("ignore:.*unwrapped version:UserWarning")
def test_gymnasiums_checker_passes_with_flat_actions():
    check_env(flat(single()), skip_render_check=True)


def test_make_gives_one_member():
    env = gymnasium.make(
        "esper/digits_impaired-v0", episode_length=2, batches_per_step=1, device="cpu"
    )
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert (type(reward), terminated, truncated) == (float, False, False)
    assert isinstance(info["action_mask"]["op"], np.ndarray)
    assert info["action_mask"]["op"].ndim == 1


def test_it_is_a_vector_environment_of_one_member():
    env = flat(single(DRAWN))
    played = play(flat_env(1, DRAWN), 9, 7)
    obs, info = env.reset(seed=9)
    for heads_EA, vector_obs, reward_E, over_E, vector_info in played:
        if heads_EA is not None:
            index = int(env.actions.index(heads_EA)[0])
            obs, reward, over, _, info = env.step(index)
            assert (reward, over) == (reward_E[0], over_E[0])
        assert same(obs, {name: values[0] for name, values in vector_obs.items()})
        assert same(info["action_mask"], vector_info["action_mask"][0])


def test_an_episode_that_is_over_needs_a_reset():
    env = single(episode_length=2)
    env.reset(seed=0)
    for _ in range(2):
        _, _, terminated, _, info = env.step(np.zeros(8, dtype=np.int64))
    assert terminated
    assert np.isfinite(info["outcome"]["score"])
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(np.zeros(8, dtype=np.int64))
    env.reset()
    with pytest.raises(EsperError, match=r"expected \(8,\)"):
        env.step(np.zeros(3, dtype=np.int64))
