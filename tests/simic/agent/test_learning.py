"""The agent learns a masked bandit, a memory task and CartPole."""

from dataclasses import replace

import numpy as np
import pytest

from esper.leyline import LifecycleOp
from esper.simic.agent import PPOAgent, PPOConfig
from esper.simic.agent.schedule import Schedule
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo import NetworkConfig, Observation, PolicySpec
from ppo_support import OPS, Task, masks_for, play

NET = NetworkConfig(width=32, attention_heads=2, embedding=8, op_prior=(0.0,) * OPS)
"""Its prior is even: these problems are not about growing."""


# ---- a bandit -----------------------------------------------------------------------------

PAY_SK = np.array([[0.1, 0.0], [1.0, 0.2], [0.2, 0.7]])
PRUNE_PAYS = 0.4
"""What GERMINATE pays by slot and blueprint, and PRUNE anywhere; WAIT pays nothing."""


class MaskedBandit(Task):
    """One step: which slots are open is drawn anew and not observed but through the mask."""

    steps = 1

    def __init__(self, rng: np.random.Generator, members: int) -> None:
        self.open_ES = rng.random((members, 3)) < 0.5
        self.open_ES[~self.open_ES.any(axis=1), 0] = True
        self.members = members

    def see(self, step):
        slot_ESF = np.concatenate(
            [np.tile(np.eye(3), (self.members, 1, 1)), self.open_ES[..., None]], axis=2
        ).astype(np.float32)
        obs = Observation(
            np.ones((self.members, 1), dtype=np.float32),
            slot_ESF,
            np.tile(np.eye(2, dtype=np.float32), (self.members, 3, 1, 1)),
            np.full((self.members, 3), -1),
        )
        slot_EOS = np.zeros((self.members, OPS, 3), dtype=bool)
        slot_EOS[:, LifecycleOp.GERMINATE] = self.open_ES
        slot_EOS[:, LifecycleOp.PRUNE] = True
        ops = (LifecycleOp.WAIT, LifecycleOp.GERMINATE, LifecycleOp.PRUNE)
        return obs, masks_for(slot_EOS, ops)

    def pay(self, step, act):
        actions = act.decision.actions
        assert self.open_ES[np.arange(self.members), actions.slot][
            actions.op == LifecycleOp.GERMINATE
        ].all()
        grown = PAY_SK[actions.slot, actions.blueprint]
        pays = {LifecycleOp.GERMINATE: grown, LifecycleOp.PRUNE: PRUNE_PAYS, LifecycleOp.WAIT: 0.0}
        return np.select([actions.op == op for op in pays], list(pays.values()))

    def best(self):
        """The most each member could get: the best open slot, or PRUNE where that pays more."""
        return np.maximum(np.where(self.open_ES, PAY_SK.max(axis=1), 0).max(axis=1), PRUNE_PAYS)


def bandit_regret(seed: int) -> float:
    """What a trained agent leaves on the table, per member."""
    rounds, members = 60, 128
    config = PPOConfig(
        network=NET,
        learning_rate=Schedule(1.5e-3, 0.0, rounds),
        exploration=Schedule(0.3, 0.0, rounds),
        minibatches=2,
    )
    it = PPOAgent(PolicySpec(1, 4, 2), config, seed)
    rng, rollout = np.random.default_rng(seed), it.make_buffer(1, members, 3, 2)
    for round_index in range(rounds):
        play(it, MaskedBandit(rng, members), members, round_index, rollout)
        run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    test = MaskedBandit(np.random.default_rng(99), 512)
    best = test.best()
    assert PRUNE_PAYS < best.mean() < 1.0  # the mask decides: not always PRUNE, nor slot 1
    return float(best.mean() - play(it, test, 512, 0).mean())


@pytest.mark.slow
def test_a_masked_bandit_is_learnt_to_its_optimum():
    assert bandit_regret(seed=0) == pytest.approx(0.0, abs=0.005)


# ---- a task for a memory ------------------------------------------------------------------


class Recall(Task):
    """A cue at the first step, nothing to do for a while, then point at the slot it named."""

    steps = 6

    def __init__(self, rng: np.random.Generator, members: int) -> None:
        self.cue_E, self.members = rng.integers(0, 2, members), members

    def see(self, step):
        last = step == self.steps - 1
        cue_E = (2.0 * self.cue_E - 1.0) * (step == 0)
        global_EG = np.stack([cue_E, np.full(self.members, float(last))], axis=1)
        slot_ESF = np.tile(np.eye(2, dtype=np.float32), (self.members, 1, 1))
        candidate_ESKD = np.zeros((self.members, 2, 1, 1), dtype=np.float32)
        held_ES = np.full((self.members, 2), -1)
        obs = Observation(global_EG.astype(np.float32), slot_ESF, candidate_ESKD, held_ES)
        op = LifecycleOp.ADVANCE if last else LifecycleOp.WAIT
        return obs, masks_for(np.ones((self.members, OPS, 2), dtype=bool), (op,), blueprints=1)

    def pay(self, step, act):
        right_E = act.decision.actions.slot == self.cue_E
        return np.where(right_E, 1.0, 0.0) * (step == self.steps - 1)


def recalled(core: str, seed: int) -> float:
    """Share of cues that are recalled after training."""
    rounds, members = 40, 64
    network = replace(NET, core=core)
    config = PPOConfig(network=network, learning_rate=Schedule(2e-3, 0.0, rounds), minibatches=2)
    it = PPOAgent(PolicySpec(2, 2, 1), config, seed)
    rng, rollout = np.random.default_rng(seed), it.make_buffer(Recall.steps, members, 2, 1)
    for round_index in range(rounds):
        play(it, Recall(rng, members), members, round_index, rollout)
        run_ppo_updates(it, 1, rollout, it.obs_normalizer)
    return float(play(it, Recall(np.random.default_rng(99), 1000), 1000, 0).mean())


CHANCE = pytest.approx(0.5, abs=4 * 0.5 / 1000**0.5)


@pytest.mark.slow
def test_the_recurrent_core_recalls_what_it_saw():
    assert recalled("lstm", seed=0) > 0.99


@pytest.mark.slow
def test_without_memory_recall_stays_at_chance():
    assert recalled("memoryless", seed=0) == CHANCE


# ---- CartPole -----------------------------------------------------------------------------


def balanced(seed: int) -> float:
    """Mean of 20 greedy episodes after 12,288 steps."""
    gymnasium = pytest.importorskip("gymnasium", reason="gymnasium comes with the dev extra")
    from gym_runner import EnvPlayer

    rounds = 12
    config = PPOConfig(
        network=NetworkConfig(width=32, attention_heads=2, embedding=4),
        gamma=0.99,
        learning_rate=Schedule(1e-3, 0.0, rounds),
        entropy=Schedule(0.0),
    )
    player = EnvPlayer(lambda: gymnasium.make("CartPole-v1"), 16, 64, config, seed)
    player.learn(rounds * 16 * 64)
    return float(player.evaluate(episodes=20, seed=1000).mean())


def test_cartpole_is_balanced():
    assert balanced(seed=0) >= 195


# ---- not by luck --------------------------------------------------------------------------


@pytest.mark.slow
def test_learning_does_not_hang_on_the_seed():
    found = {
        "regret of the bandit": [bandit_regret(seed) for seed in range(5)],
        "recall": [recalled("lstm", seed) for seed in range(5)],
        "recall without memory": [recalled("memoryless", seed) for seed in range(5)],
        "CartPole": [balanced(seed) for seed in range(5)],
    }
    for name, values in found.items():
        print(f"{name}, seeds 0 to 4: {[round(value, 3) for value in values]}")
    assert max(found["regret of the bandit"]) < 0.005
    assert min(found["recall"]) > 0.99
    assert found["recall without memory"] == [CHANCE] * 5
    assert min(found["CartPole"]) >= 195
