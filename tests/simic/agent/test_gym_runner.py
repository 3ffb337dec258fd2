"""The Gymnasium adapter: masks, terminals, truncation and bootstrap values."""

import numpy as np
import pytest

from esper.leyline import EsperError
from esper.simic.agent import PPOConfig
from esper.simic.agent.schedule import Schedule
from esper.tamiyo import NetworkConfig

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")
from gym_runner import EnvPlayer  # noqa: E402

NET = NetworkConfig(width=16, attention_heads=2, embedding=4)


class Clock(gymnasium.Env):
    """Pays 1 a step and shows the time; after 5 steps it ends, or is cut. One action is illegal."""

    observation_space = gymnasium.spaces.Box(0.0, 10.0, (1,))
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, cut: bool) -> None:
        self.cut, self.time = cut, 0

    def action_masks(self):
        return [action != self.time % 3 for action in range(3)]

    def _show(self):
        return np.array([0.0 if self.cut else self.time], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_masks()[action], "an illegal action"
        self.time += 1
        over = self.time == 5
        return self._show(), 1.0, over and not self.cut, over and self.cut, {}


def player(cut: bool, **settings) -> EnvPlayer:
    base = {"network": NET, "gamma": 0.9, "normalize_rewards": False, "target_kl": None}
    return EnvPlayer(lambda: Clock(cut), 4, 15, PPOConfig(**(base | settings)), seed=0)


@pytest.mark.parametrize("cut", [False, True])
def test_ends_are_told_apart(cut):
    it = player(cut)
    for step in range(15):
        it._step(step)
    ends = np.arange(15) % 5 == 4
    expected = np.repeat(ends[:, None], 4, axis=1)
    assert (it.rollout.truncated_TE == (expected & cut)).all()
    assert (it.rollout.terminal_TE == (expected & (not cut))).all()
    assert it.episode_returns == [5.0] * 12


def test_a_cut_is_worth_the_state_beyond_it_not_the_next_episode(monkeypatch):
    """`Clock` shows the same after a cut; only the core's state tells the two apart."""
    it = player(cut=True)
    acts, act = [], it.agent.act
    monkeypatch.setattr(it.agent, "act", lambda *a: acts.append(act(*a)) or acts[-1])
    for step in range(5):
        it._step(step)
    states = {"next": it.state, "before": acts[-2].state, "beyond": acts[-1].state}
    worth = {name: it.agent.value(*it.observed.as_inputs(), s) for name, s in states.items()}
    found = it.rollout.bootstrap_TE[4]
    assert found == pytest.approx(worth["beyond"], abs=1e-6)
    assert all(np.abs(found - worth[other]).min() > 1e-5 for other in ("next", "before"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "worth"), [(True, 1 / (1 - 0.9)), (False, (1 - 0.9**5) / (1 - 0.9))]
)
def test_the_learnt_value_is_the_endless_sum_only_where_ends_are_cuts(cut, worth):
    updates = 40
    it = player(cut, learning_rate=Schedule(1e-2, 0.0, updates), gae_lambda=0.9, minibatches=1)
    it.learn(updates * 60)
    fresh = it.agent.initial_state(4)
    for env in it.envs:
        env.reset()
    it.observed = type(it.observed)(np.zeros((4, 1), dtype=np.float32), it.observed.legal_EA)
    assert it.agent.value(*it.observed.as_inputs(), fresh) == pytest.approx(worth, rel=0.03)


def test_evaluation_is_repeatable_and_leaves_training_alone():
    it = player(cut=False)
    before, count = it.observed, it.agent.obs_normalizer.pending["global"].count
    assert it.evaluate(3, seed=5).tolist() == it.evaluate(3, seed=5).tolist() == [5.0] * 3
    assert it.observed is before
    assert it.agent.obs_normalizer.pending["global"].count == count


def test_at_least_as_many_steps_as_asked_for_are_played():
    it = player(cut=False)
    assert len(it.learn(61)) == 2


def test_other_action_spaces_are_refused():
    class Steering(Clock):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    with pytest.raises(EsperError, match=r"only Discrete\(n\)"):
        EnvPlayer(lambda: Steering(cut=False), 2, 4)
