"""Returns of truncated rollouts: bootstrapped correctly, and nothing counts twice.

Through the real engine and client. V is the test's own where a closed form needs to know it.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine_support import CALM, Diary, small_engine
from esper.leyline.arrays import Doubles, Floats
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.simic import client as client_module
from esper.simic.agent import PPOAgent, PPOConfig, RolloutBuffer
from esper.simic.agent.agent import Act
from esper.simic.agent.schedule import Schedule
from esper.simic.agent.update import Targets
from esper.simic.client import SimicClient, policy_spec
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.features import FEATURE_NAMES
from esper.tamiyo.inputs import Observation
from loop_support import SMALL, tiny_task

STEPS, MEMBERS = 6, 4
SPEC = tiny_task(episode_length=STEPS)
PROGRESS = FEATURE_NAMES.whole.index("progress")
PAID = np.array([0.5, -1.0, 2.0, 0.25])
"""What a member is paid for every step."""
STILL = {
    "network": SMALL,
    "learning_rate": Schedule(0.0),
    "normalize_advantages": False,
    "normalize_observations": False,
    "normalize_rewards": False,
    "target_kl": None,
    "epochs": 1,
}
"""A learner that stays as it is, so that cut and uncut rollouts meet the same policy."""


def paid(inputs) -> tuple[Doubles, RewardComponentsTelemetry]:
    parts = RewardComponentsTelemetry.of({"step": PAID * (1 + inputs.step)}, inputs.members)
    return parts.total, parts


def worth(steps_done: Doubles) -> Doubles:
    """Of a state before its reward: all that is still to be paid."""
    return PAID * (STEPS * (STEPS + 1) - steps_done * (steps_done + 1)) / 2


class KnownValue(PPOAgent):
    """An agent whose V is the exact return, or nonsense that is a function of the step."""

    exact = True

    def known(self, obs: Observation) -> Doubles:
        steps_done = np.rint(obs.global_EG[:, PROGRESS].astype(np.float64) * STEPS) - 1
        return worth(steps_done) if self.exact else np.sin(3.0 * steps_done) + PAID

    def act(self, obs, *args, **kwargs) -> Act:
        act = super().act(obs, *args, **kwargs)
        return replace(act, trace=replace(act.trace, value_E=self.known(obs)))

    def value(self, obs, masks, state) -> Floats:
        return self.known(obs)


@pytest.fixture
def learnt_from(monkeypatch):
    """Copies of the rollouts that updates were made from, in order."""
    seen: list[RolloutBuffer] = []

    def spy(agent, passes, rollout, normalizer, use_amp):
        seen.append(copy.deepcopy(rollout))
        return run_ppo_updates(agent, passes, rollout, normalizer, use_amp)

    monkeypatch.setattr(client_module, "run_ppo_updates", spy)
    return seen


def play(client: SimicClient, steps: int | None, rounds: int = 1, **settings) -> None:
    engine = small_engine(SPEC, rollout_steps=steps, **settings)
    while engine.round < rounds:
        client.update(engine.run_rollout(client))


def known_client(exact: bool, **ppo) -> SimicClient:
    agent = KnownValue(policy_spec(), PPOConfig(**(STILL | ppo)))
    agent.exact = exact
    return SimicClient(agent, paid)


def targets(client: SimicClient, kept: list[RolloutBuffer]) -> list[Targets]:
    return [client.agent.targets(rollout) for rollout in kept]


def test_progress_says_which_step_it_is():
    diary, client = Diary(), known_client(True)
    small_engine(SPEC, diary).run_rollout(client)
    found = [client.buffer.value_TE[t] for t in range(STEPS)]
    np.testing.assert_allclose(found, [worth(np.float64(t)) for t in range(STEPS)])
    assert [r.signals.step for r in diary.records] == list(range(STEPS))


@pytest.mark.parametrize("steps", [None, *range(1, STEPS)])
def test_with_an_exact_value_cutting_a_rollout_anywhere_changes_nothing(learnt_from, steps):
    """Nothing is better or worse than expected, and a return is what is still to be paid."""
    client = known_client(True)
    play(client, steps)
    expected = [worth(np.float64(t)) for t in range(STEPS)]
    for gae_lambda in (0.0, 0.9, 1.0):
        client.agent.config = replace(client.agent.config, gae_lambda=gae_lambda)
        found = targets(client, learnt_from)
        advantage = np.concatenate([t.advantage_TE.numpy() for t in found])
        returned = np.concatenate([t.return_TE.numpy() for t in found])
        assert advantage.shape == (STEPS, MEMBERS)
        np.testing.assert_allclose(advantage, 0.0, atol=1e-5)
        np.testing.assert_allclose(returned, expected, rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 4])
def test_with_any_value_returns_telescope_to_the_cut(learnt_from, steps):
    """lambda = gamma = 1: all rewards up to the cut, and V of the state behind it."""
    client = known_client(False, gae_lambda=1.0)
    play(client, steps)
    done = 0
    for rollout, found in zip(learnt_from, targets(client, learnt_from), strict=True):
        end = done + rollout.filled
        beyond = 0.0 if end == STEPS else np.sin(3.0 * end) + PAID
        expected = [PAID * sum(range(t + 1, end + 1)) + beyond for t in range(done, end)]
        np.testing.assert_allclose(found.return_TE.numpy(), expected, rtol=1e-5, atol=1e-5)
        done = end
    assert done == STEPS


@pytest.mark.parametrize("steps", [1, 4])
def test_the_value_beyond_a_cut_is_the_one_the_next_step_begins_with(learnt_from, steps):
    """The network's own V, bit for bit, where the policy does not change in between."""
    from esper.simic.rewards.score import ScoreReward

    agent = PPOAgent(policy_spec(), PPOConfig(**STILL))
    play(SimicClient(agent, ScoreReward(SPEC.upkeep)), steps)
    for before, after in pairwise(learnt_from):
        beyond = before.bootstrap_TE[before.filled - 1]
        assert np.abs(beyond).max() > 0
        np.testing.assert_array_equal(beyond, after.value_TE[0])
    assert len(learnt_from) == -(-STEPS // steps)


def test_a_rollback_right_behind_a_cut_is_bootstrapped_like_any_state(learnt_from):
    """The cut member has a next state, the one in which it is found broken."""

    def watch(record) -> None:
        if record.signals.step == 2:
            engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    client = known_client(True)
    engine = small_engine(SPEC, Diary(watch), rollout_steps=3, governor=CALM)
    for _ in range(2):
        rollout = engine.run_rollout(client)
        client.update(rollout)
    assert rollout.outcome.rollbacks_E.tolist() == [0, 1, 0, 0]
    first, second = learnt_from
    assert first.truncated_TE[2].all()
    np.testing.assert_allclose(first.bootstrap_TE[2], worth(np.float64(3)))
    assert second.terminal_TE[0].tolist() == [False, True, False, False]


@pytest.mark.parametrize("steps", [3])
def test_the_scale_of_rewards_does_not_depend_on_where_rollouts_are_cut(steps):
    """The return of an episode goes on behind a cut; only the episode's end begins it anew."""
    whole, pieces = (known_client(True, normalize_rewards=True) for _ in range(2))
    play(whole, None, rounds=2)
    play(pieces, steps, rounds=2)
    one, two = (client.agent.reward_normalizer for client in (whole, pieces))
    assert one.seen.count == two.seen.count == 2 * STEPS * MEMBERS
    assert one.scale == pytest.approx(two.scale)
    assert one.scale != pytest.approx(1.0)
    assert two.return_E.tolist() == [0.0] * MEMBERS
