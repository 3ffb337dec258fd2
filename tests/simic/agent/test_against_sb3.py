"""Comparison with stable-baselines3: same environments and steps, five seeds each.

    make test-slow, or: pytest -m slow -s tests/simic/agent/test_against_sb3.py

Each agent plays 20 greedy episodes on the same seeds; compared is the interquartile mean of all
of them. stable-baselines3 runs with the settings its own zoo found for CartPole, sb3-contrib's
MaskablePPO with its defaults but for the shorter rollouts that this short run needs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from esper.simic.agent import PPOConfig
from esper.simic.agent.schedule import Schedule
from esper.tamiyo import NetworkConfig

pytestmark = pytest.mark.slow

SEEDS = range(5)
EPISODES, EVAL_SEED = 20, 10_000
MASKED_STEPS = 20_000
NET = NetworkConfig(width=32, attention_heads=2, embedding=4)
EXTRA = "comes with the test-extra extra: pip install -c constraints.txt -e '.[test-extra]'"

Returns = np.ndarray


def iqm(returns: list[Returns]) -> float:
    metrics = pytest.importorskip("rliable.metrics", reason=f"rliable {EXTRA}")
    return float(metrics.aggregate_iqm(np.stack(returns)))


def ours(make_env: Callable, steps: int, members: int, config: PPOConfig, seed: int) -> Returns:
    from gym_runner import EnvPlayer

    player = EnvPlayer(make_env, members, 64, config, seed)
    player.learn(steps - steps % (members * 64))  # never more steps than the others
    return player.evaluate(EPISODES, EVAL_SEED)


def theirs(model, make_env: Callable, steps: int, masked: bool) -> Returns:
    from gym_runner import _env_seed

    model.learn(steps)
    returns = []
    for episode in range(EPISODES):
        env = make_env()
        obs, _ = env.reset(seed=_env_seed(EVAL_SEED, episode))
        total, over = 0.0, False
        while not over:
            known = {"action_masks": env.unwrapped.action_masks()} if masked else {}
            action, _ = model.predict(obs, deterministic=True, **known)
            obs, reward, terminal, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminal or truncated
        returns.append(total)
    return np.array(returns)


def report(name: str, returns: list[Returns]) -> float:
    score = iqm(returns)
    print(f"{name}: IQM {score:.1f}, means by seed {[round(float(r.mean()), 1) for r in returns]}")
    return score


@pytest.fixture(autouse=True)
def one_thread():
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(kept)


@pytest.mark.parametrize("steps", [20_000, 50_000])
def test_cartpole_as_well_as_stable_baselines3(steps):
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")
    sb3 = pytest.importorskip("stable_baselines3", reason=f"stable-baselines3 {EXTRA}")
    pytest.importorskip("rliable", reason=f"rliable {EXTRA}")
    from stable_baselines3.common.env_util import make_vec_env

    def make_env():
        return gymnasium.make("CartPole-v1")

    def rival(seed: int):
        return sb3.PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", n_envs=8, seed=seed),
            n_steps=32,
            batch_size=256,
            n_epochs=20,
            gae_lambda=0.8,
            gamma=0.98,
            ent_coef=0.0,
            learning_rate=lambda left: 1e-3 * left,
            clip_range=lambda left: 0.2 * left,
            seed=seed,
            device="cpu",
        )

    updates = steps // (16 * 64)
    config = PPOConfig(
        network=NET,
        gamma=0.99,
        learning_rate=Schedule(1e-3, 0.0, updates),
        entropy=Schedule(0.0),
    )
    found = [ours(make_env, steps, 16, config, seed) for seed in SEEDS]
    rivals = [theirs(rival(seed), make_env, steps, masked=False) for seed in SEEDS]
    score, bar = report("esper", found), report("stable-baselines3", rivals)
    assert score >= 0.9 * bar


def test_a_masked_environment_as_well_as_sb3_contrib():
    contrib = pytest.importorskip("sb3_contrib", reason=f"sb3-contrib {EXTRA}")
    pytest.importorskip("rliable", reason=f"rliable {EXTRA}")
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete
    from stable_baselines3.common.env_util import make_vec_env

    def make_env():
        """20 states, an action that fits each; 10 of the others are masked at every step."""
        return InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10)

    def rival(seed: int):
        envs = make_vec_env(make_env, n_envs=8, seed=seed)
        return contrib.MaskablePPO("MlpPolicy", envs, n_steps=64, seed=seed, device="cpu")

    updates = MASKED_STEPS // (8 * 64)
    config = PPOConfig(
        network=NET,
        gamma=0.99,
        learning_rate=Schedule(1e-3, 0.0, updates),
        entropy=Schedule(0.0),
        epochs=10,
    )
    found = [ours(make_env, MASKED_STEPS, 8, config, seed) for seed in SEEDS]
    rivals = [theirs(rival(seed), make_env, MASKED_STEPS, masked=True) for seed in SEEDS]
    score, bar = report("esper", found), report("sb3-contrib", rivals)
    assert score >= 0.9 * bar
