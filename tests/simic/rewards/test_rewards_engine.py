"""Signs and units end to end: every mode in the real engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, small_engine, small_task
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.factory import make_reward
from esper.tamiyo.baselines import RandomPolicy, StaticTopology, WaitPolicy
from reward_support import EVERY, pay, reward_of, totals

every = pytest.mark.parametrize(("mode", "family"), EVERY)
RISES, FALLS, STRUCK, STEPS = 0, 1, 5, 8
SPEC = small_task(
    episode_length=STEPS, classes=3, base_channels=8, train=600, validation=100,
    batch_size=32, batches_per_step=8, kernel_size=3,
)  # fmt: skip
PROGRESS = ("score", "shaped", "basic", "basic_plus", "sparse", "minimal")
"""Modes that pay for the member's own progress; the others pay for seeds alone."""


class Sabotage(Diary):
    """From step 5 on a member's host is scrambled before each step: its accuracy falls for good,
    though nothing is broken."""

    def on_step(self, record) -> None:
        super().on_step(record)
        if record.signals.step >= STRUCK - 1:
            host = self.engine.env.model.network.host.flat_EP.detach()
            generator = torch.Generator().manual_seed(record.signals.step)
            host[FALLS] = torch.randn(host[FALLS].shape, generator=generator) * 0.5


def run(reward, policy=WaitPolicy):
    diary = Sabotage()
    engine = small_engine(SPEC, diary, members=3, governor=CALM)
    diary.engine = engine
    engine.run_rollout(policy(reward))
    return diary.records


@pytest.fixture(scope="module")
def waiting():
    return run(None)


def test_one_member_rises_and_one_falls(waiting):
    accuracy = np.stack([r.reward_inputs.accuracy_E for r in waiting])
    first = waiting[0].reward_inputs
    assert accuracy[-1, RISES] > first.accuracy_before_E[RISES] + 0.2
    assert accuracy[-1, RISES] > accuracy[-1, FALLS] + 0.1
    assert accuracy[-1, FALLS] < accuracy[STRUCK - 1, FALLS] - 0.1
    loss = np.stack([r.reward_inputs.loss_E for r in waiting])
    assert loss[-1, RISES] < first.loss_before_E[RISES]
    assert loss[STRUCK - 1, FALLS] < loss[-1, FALLS]


class AllAtOnce:
    """Every progress reward, each called with what the engine hands over; the first one pays."""

    def __init__(self) -> None:
        kinds = [(mode, family) for mode in PROGRESS for family in ("contribution", "loss")]
        self.rewards = {
            (mode, family): make_reward(RewardConfig(mode=mode, family=family), SPEC.upkeep)
            for mode, family in kinds
        }
        self.paid = {kind: [] for kind in kinds}

    def __call__(self, inputs):
        answers = {kind: reward(inputs) for kind, reward in self.rewards.items()}
        for kind, (total_E, _) in answers.items():
            self.paid[kind].append(total_E)
        return answers[PROGRESS[0], "contribution"]


@pytest.fixture(scope="module")
def paid_by():
    """Totals `[T, E]` of every progress reward, from one run of the engine."""
    rewards = AllAtOnce()
    records = run(rewards)
    paid = {kind: np.stack(totals) for kind, totals in rewards.paid.items()}
    engines_own = np.stack([record.rewards.total for record in records])
    assert np.array_equal(paid[PROGRESS[0], "contribution"], engines_own)
    return paid


@pytest.mark.parametrize("family", ["contribution", "loss"])
@pytest.mark.parametrize("mode", PROGRESS)
def test_a_member_whose_accuracy_rises_is_paid_more_than_one_whose_falls(
    mode, family, waiting, paid_by
):
    """What the engine hands to its client is what the reward says, sign and all."""
    paid = paid_by[mode, family]
    replayed = totals(pay(reward_of(mode, family), [r.reward_inputs for r in waiting]))
    assert np.array_equal(paid, replayed), "paid by the engine or read from its diary: the same"
    before, after = paid[:STRUCK].sum(axis=0), paid[STRUCK:].sum(axis=0)
    assert after[RISES] > after[FALLS]
    if mode not in ("sparse", "minimal"):
        assert (before > 0).all(), "all of them learn"
        assert after[FALLS] < 0
    assert (np.abs((before + after)[[RISES, 2]]) <= 1).all(), "in units of accuracy, 0..1"


@pytest.mark.parametrize("mode", ["simplified", "escrow"])
def test_rewards_for_seeds_pay_nothing_for_waiting(mode, waiting):
    paid = pay(reward_of(mode), [record.reward_inputs for record in waiting])
    assert not totals(paid).any()


@pytest.fixture(scope="module")
def planted():
    """Permanent seeds from the start; one member's host is scrambled."""
    return run(None, lambda reward: StaticTopology({"r0c1": "conv_heavy"}, reward))


@pytest.mark.parametrize("mode", ["simplified", "basic_plus"])
def test_seeds_are_paid_what_the_engine_measures(mode, planted):
    reported = [record.reward_inputs for record in planted]
    found = np.stack([np.nan_to_num(inputs.contribution_ES).sum(axis=1) for inputs in reported])
    assert (found != 0).any()
    paid = pay(reward_of(mode), reported)
    if mode == "simplified":
        worth = np.stack([components.part("worth") for components in paid]).cumsum(axis=0)
        np.testing.assert_allclose(worth, found, atol=1e-12)
        return
    drip = np.stack([components.part("drip") for components in paid])
    np.testing.assert_allclose(drip, found / STEPS, atol=1e-12)


@pytest.fixture(scope="module")
def troubled():
    """Random growth; member 1 breaks before step 5 trains."""
    diary = Diary()

    def strike(record) -> None:
        if record.signals.step == STRUCK - 1:
            engine.env.model.network.host.flat_EP.detach()[FALLS, 3] = float("nan")

    diary.watch = strike
    engine = small_engine(small_task(episode_length=12), diary, governor=CALM, seed=1)
    engine.run_rollout(RandomPolicy(1))
    return [record.reward_inputs for record in diary.records]


@every
def test_random_growth_and_a_rollback_are_paid_in_full(mode, family, troubled):
    """Finite everywhere, parts sum to the total, one penalty, no bridge over the rollback."""
    assert troubled[STRUCK].rolled_back_E.tolist() == [False, True, False, False]
    assert not np.isfinite(troubled[STRUCK].loss_E[FALLS])
    paid = pay(reward_of(mode, family), troubled)
    assert np.isfinite(totals(paid)).all()
    penalties = np.stack([components.part("rollback") for components in paid])
    assert penalties.sum(axis=0).tolist() == [0, -0.1, 0, 0]
    if mode in ("score", "shaped") and family == "contribution":
        change = sum(components.part("score") for components in paid)
        expected = troubled[-1].score_E - troubled[0].score_before_E
        np.testing.assert_allclose(change, expected, atol=1e-12)
        struck = troubled[STRUCK]
        way = struck.snapshot_score_E[FALLS] - struck.score_before_E[FALLS]
        assert paid[STRUCK].part("score")[FALLS] == pytest.approx(way, abs=1e-12)
    if mode in ("basic", "basic_plus"):
        gained = sum(components.part("progress") for components in paid)
        last, first = troubled[-1], troubled[0]
        expected = last.accuracy_E - first.accuracy_before_E
        if family == "loss":
            expected = 1 - last.loss_E / first.loss_before_E
        np.testing.assert_allclose(gained, expected, atol=1e-12)


def test_a_rollback_says_what_the_snapshot_had_come_to(troubled):
    """Where the next step starts from; and nothing where no one was set back."""
    struck, after = troubled[STRUCK], troubled[STRUCK + 1]
    for name in ("score", "accuracy", "loss"):
        found = getattr(struck, f"snapshot_{name}_E")
        assert found[FALLS] == getattr(after, f"{name}_before_E")[FALLS], name
        assert np.isnan(np.delete(found, FALLS)).all()
    snapshot = [
        t for t in range(STRUCK) if troubled[t].loss_E[FALLS] == struck.snapshot_loss_E[FALLS]
    ]
    grown = troubled[snapshot[0]].added_params_E[FALLS] if snapshot else 0.0
    assert struck.snapshot_params_E[FALLS] == grown
    quiet = np.stack([i.snapshot_params_E for t, i in enumerate(troubled) if t != STRUCK])
    assert np.isnan(quiet).all()


@pytest.mark.parametrize("mode", ["score", "shaped"])
def test_the_loss_familys_score_adds_up_over_a_rollback(mode, troubled):
    paid = pay(reward_of(mode, "loss", rent=0.3), troubled)
    last, first = troubled[-1], troubled[0]
    price = 0.3 * np.log2(1 + last.added_params_E / last.host_params)
    expected = 1 - last.loss_E / first.loss_before_E - price
    np.testing.assert_allclose(sum(p.part("score") for p in paid), expected, atol=1e-12)


def test_shaped_pays_what_score_pays_over_an_episode(troubled):
    """Rollback included: shaping changes when, never how much."""
    sums = [totals(pay(reward_of(mode), troubled)).sum(axis=0) for mode in ("shaped", "score")]
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-12)
