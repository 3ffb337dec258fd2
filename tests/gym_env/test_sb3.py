"""Stable-Baselines3 drives the vector environment directly, and its MaskablePPO learns."""

# ruff: noqa: E402  # what follows needs gymnasium and stable-baselines3

from __future__ import annotations

import numpy as np
import pytest

EXTRA = "comes with the test-extra extra"
pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")
pytest.importorskip("stable_baselines3", reason=f"stable-baselines3 {EXTRA}")
contrib = pytest.importorskip("sb3_contrib", reason=f"sb3-contrib {EXTRA}")

from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import esper.gym
from esper.karn.views import read_contenders
from esper.leyline import EsperError
from esper.leyline.seeds import EVALUATION_SEEDS
from esper.leyline.statistics import t_interval
from esper.scripts.compare import main
from esper.tamiyo.baselines import RandomPolicy
from gym_support import DRAWN, flat_env, play, same, tiny_env

CHEAP = {
    "rent": 0.25,
    "blueprints": ("depthwise", "conv_light", "conv_heavy"),
    "frozen_heads": "plain",
    "counterfactual_stride": 3,
    "activation_gradients": False,
    "device": "cpu",
}
"""As the preset digits_quick: a quarter of the price; what, where and when is decided."""


def test_it_is_the_vector_environment_with_a_reset_inside_the_last_step():
    env = esper.gym.sb3(tiny_env(2, DRAWN))
    assert isinstance(env, VecEnv)
    played = play(flat_env(2, DRAWN), 6, 9)  # two decisions into the second episode
    env.seed(6)
    assert same(env.reset(), played[0][1])
    for at, (heads_EA, obs, reward_E, over_E, _) in enumerate(played[1:8], 1):
        assert same(get_action_masks(env), played[at - 1][4]["action_mask"].astype(bool))
        found, paid_E, done_E, infos = env.step(env.envs.actions.index(heads_EA))
        assert same(paid_E, reward_E.astype(np.float32))
        assert same(done_E, over_E)
        if not over_E.any():
            assert same(found, obs)
    last = infos[1]
    assert same(last["terminal_observation"], {name: v[1] for name, v in played[7][1].items()})
    assert last["outcome"]["score"] == played[7][4]["outcome"]["score"][1]
    assert same(found, played[8][1]), "the first observation of the next episode"


def test_maskable_ppo_trains_with_masks_only_legal_actions():
    env = esper.gym.sb3(tiny_env(2, DRAWN, frozen_heads="plain"))
    assert is_masking_supported(env)
    model = contrib.MaskablePPO("MultiInputPolicy", VecMonitor(env), n_steps=7, batch_size=14)
    illegal = []
    step = env.envs.env.step
    env.envs.env.step = lambda actions: illegal.append((out := step(actions))[4]["illegal"]) or out
    model.learn(28)
    assert len(illegal) == 14
    assert not np.any(illegal)


def test_what_members_share_cannot_be_set_for_one():
    env = esper.gym.sb3(tiny_env(2))
    with pytest.raises(EsperError, match="share one environment"):
        env.set_attr("render_mode", "human")
    with pytest.raises(EsperError, match="already made"):
        esper.gym.sb3(env.envs, rent=2.0)
    assert not env.has_attr("no_such_attribute")


def final_scores(model, env, deterministic: bool = False) -> np.ndarray:
    """Final scores `[E]` of its actions on the hosts of the first evaluation seed."""
    env.seed(EVALUATION_SEEDS[0])
    obs, done_E = env.reset(), np.zeros(1, dtype=bool)
    while not done_E.any():
        chosen_E, _ = model.predict(
            obs, action_masks=get_action_masks(env), deterministic=deterministic
        )
        obs, _, done_E, infos = env.step(chosen_E)
    return np.array([info["outcome"]["score"] for info in infos])


POLICY = """
import esper.gym
from sb3_contrib import MaskablePPO


class Trained(esper.gym.FlatPolicy):
    frozen_heads = "plain"
    blueprints = ("norm", "conv_light")

    def begin(self, members):
        self.model = MaskablePPO.load({path!r}, device="cpu")

    def choose(self, observation, action_mask):
        return self.model.predict(observation, action_masks=action_mask, deterministic=True)[0]
"""


def test_compare_judges_a_trained_model_as_its_environment_does(tmp_path):
    small = {"episode_length": 4, "batches_per_step": 1, "batch_size": 16, "device": "cpu"}
    env = esper.gym.sb3("synthetic", num_envs=3, frozen_heads="plain", activation_gradients=False,
                        blueprints=("norm", "conv_light"), **small)  # fmt: skip
    model = contrib.MaskablePPO("MultiInputPolicy", env, n_steps=4, batch_size=12, seed=0)
    model.learn(12)
    model.save(tmp_path / "model.zip")
    file = tmp_path / "mine.py"
    file.write_text(POLICY.format(path=str(tmp_path / "model.zip")))
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in small.items()]
    argv = ["wait", f"{file}:Trained", "--task=synthetic", "--seeds=3", "--envs=3", "--quiet"]
    assert main([*argv, *flags, f"--out={tmp_path / 'out'}"]) == 0
    wait, trained = read_contenders(tmp_path / "out")
    score_E = final_scores(model, env, deterministic=True)
    assert trained.score.value == pytest.approx(score_E.mean(), rel=1e-9)
    assert wait.score.value != pytest.approx(score_E.mean(), rel=1e-9), "it grew something"


def test_maskable_ppo_beats_random_at_a_quarter_of_the_price():
    """Ten rounds of 16 members, then ten fresh hosts: the interval of the difference is above 0."""
    env = esper.gym.sb3("digits_impaired", num_envs=16, **CHEAP)
    model = contrib.MaskablePPO(
        "MultiInputPolicy", env, learning_rate=1e-3, n_steps=24, batch_size=96, n_epochs=8,
        gamma=1.0, gae_lambda=0.98, ent_coef=0.005, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(10 * 24 * 16)
    fresh = esper.gym.sb3("digits_impaired", num_envs=10, **CHEAP)
    learnt_E = final_scores(model, fresh)
    engine = fresh.envs.unwrapped.engine
    engine.round = 0
    random_E = engine.run_rollout(RandomPolicy(0)).outcome.score_E
    mean, low, high = (float(x) for x in t_interval(learnt_E - random_E))
    print(f"MaskablePPO {learnt_E.mean():.3f}, random {random_E.mean():.3f}, difference {mean:+.3f}"
          f" ({low:+.3f} to {high:+.3f})")  # fmt: skip
    assert low > 0
