"""What was trained on flat actions of an environment acts in the engine as it did there."""

# ruff: noqa: E402  # what follows needs gymnasium

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")

import esper.gym
from esper.leyline import PLANNED, ContextSpec, EsperError, Range
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.policy import PolicyClient
from esper.tolaria.engine import VectorizedEngine
from gym_support import DRAWN, flat_env, same

SEED, MEMBERS = 7, 3
RESTARTS = replace(PLANNED, actions="full+restart")
CONTEXTS = [None, DRAWN, RESTARTS, replace(DRAWN, capped=1.0, cap=Range(0.0, 0.1))]


def chosen(observation, mask_EN) -> np.ndarray:
    """A legal action that depends on all that is observed."""
    seen_E = sum(np.abs(v.reshape(len(mask_EN), -1)).sum(axis=1) for v in observation.values())
    legal = [np.flatnonzero(mask_N) for mask_N in mask_EN]
    return np.array([some[int(997 * x) % len(some)] for some, x in zip(legal, seen_E, strict=True)])


class Trained(esper.gym.FlatPolicy):
    frozen_heads = "plain"
    reads_activation_gradients = True

    def __init__(self) -> None:
        self.seen: list[tuple[dict, np.ndarray]] = []

    def choose(self, observation, action_mask):
        self.seen.append((observation, action_mask))
        return chosen(observation, action_mask)


def in_the_environment(contexts: ContextSpec | None) -> tuple[list, dict]:
    """What is observed in an episode of the environment, and its outcome."""
    env = flat_env(MEMBERS, contexts, frozen_heads="plain")
    obs, info = env.reset(seed=SEED)
    seen, over_E = [], np.zeros(1, dtype=bool)
    while not over_E.any():
        mask_EN = info["action_mask"].astype(bool)
        seen.append((obs, mask_EN))
        obs, _, over_E, _, info = env.step(chosen(obs, mask_EN))
    return seen, info["outcome"]


@pytest.mark.parametrize("contexts", CONTEXTS, ids=["fixed", "drawn", "restarts", "capped"])
def test_an_episode_of_the_engine_is_that_of_the_environment(contexts):
    expected, outcome = in_the_environment(contexts)
    env = flat_env(MEMBERS, contexts, frozen_heads="plain").unwrapped
    engine = VectorizedEngine(env.task, env.population.engine_config(SEED), data=env._data)
    policy = Trained()
    client = PolicyClient(policy, ScoreReward(env.task.upkeep))
    rollout = engine.run_rollout(client)
    assert np.array_equal(policy._actions.table_NA, env.actions.table_NA)
    assert len(policy.seen) == len(expected)
    for ours, theirs in zip(policy.seen, expected, strict=True):
        assert same(ours[0], theirs[0])
        assert same(ours[1], theirs[1])
    assert same(rollout.outcome.score_E, outcome["score"])


def test_an_answer_that_is_no_index_for_each_member_is_one_line():
    class Short(Trained):
        def choose(self, observation, action_mask):
            return np.zeros(1, dtype=np.int64)

    class Empty(esper.gym.FlatPolicy):
        pass

    env = flat_env(MEMBERS, None).unwrapped
    for policy, line in ((Short(), r"index for each of 3 members"), (Empty(), "has no choose")):
        with pytest.raises(EsperError, match=line) as error:
            VectorizedEngine(
                env.task, env.population.engine_config(SEED), data=env._data
            ).run_rollout(PolicyClient(policy))
        assert "\n" not in str(error.value)
