"""Escrow through the real engine: accounts are held, paid out when seeds are made permanent, and
clawed back when they are pruned, set back, or still on trial at the end.

Six members grow the same kind of seed in their first slot; then each goes its own way.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from engine_support import CALM, Diary, small_engine, small_task
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.actions import ALPHA_SPEEDS, ALPHA_TARGETS, ActionSpec
from esper.leyline.records import PolicyDecision
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.factory import make_reward
from esper.tamiyo.baselines import WaitPolicy

KEEPS, PRUNES, FADES, BREAKS, KEEPS_THEN_BREAKS, DAWDLES = range(6)
STEPS, DECIDED, BROKEN = 20, 11, 17
"""From step 11 on seeds are kept or pruned; before step 17 trains, two members break."""
CONFIG = RewardConfig(mode="escrow", advance=0.5)
SPEC = small_task(
    episode_length=STEPS, classes=3, base_channels=8, train=600, validation=100,
    batch_size=32, batches_per_step=8,
)  # fmt: skip


class SixWays(WaitPolicy):
    """Germinates and advances in slot 0 of every member; then as the names above say."""

    def act(self, obs, masks, policy_state):
        actions = ActionSpec.wait(len(masks.op_EO))
        op, speed = actions.op.copy(), actions.alpha_speed.copy()
        if obs.step < 8:
            for choice in (LifecycleOp.GERMINATE, LifecycleOp.ADVANCE):
                op[masks.slot_EOS[:, choice, 0]] = choice
        if obs.step >= DECIDED:
            keep = masks.slot_EOS[:, LifecycleOp.FOSSILIZE, 0]
            for member in (KEEPS, KEEPS_THEN_BREAKS):
                op[member] = LifecycleOp.FOSSILIZE if keep[member] else LifecycleOp.WAIT
        if obs.step == DECIDED:
            op[[PRUNES, FADES]] = LifecycleOp.PRUNE
            speed[FADES] = ALPHA_SPEEDS.index(3)
        chosen = dataclasses.replace(
            actions,
            op=op,
            blueprint=np.full_like(op, obs.slots.blueprints.index("conv_heavy")),
            alpha_target=np.full_like(op, ALPHA_TARGETS.index(1.0)),
            alpha_speed=speed,
        )
        return PolicyDecision.deterministic(chosen), policy_state


@pytest.fixture(scope="module")
def records():
    diary = Diary()

    def strike(record) -> None:
        if record.signals.step == BROKEN - 1:
            host = engine.env.model.network.host.flat_EP.detach()
            host[[BREAKS, KEEPS_THEN_BREAKS], 3] = float("nan")

    diary.watch = strike
    engine = small_engine(SPEC, diary, members=6, governor=CALM)
    engine.run_rollout(SixWays(make_reward(CONFIG, SPEC.upkeep)))
    return diary.records


def history(records, member, name):
    return np.array([record.rewards.part(name)[member] for record in records])


def contribution(records, member):
    return np.array([r.reward_inputs.contribution_ES[member, 0] for r in records])


def earned(records, member):
    parts = ("advance", "payout", "clawback")
    return sum(history(records, member, name).sum() for name in parts)


def step_of(records, member, op):
    """When the engine carried out `op` for a member."""
    done = [
        t
        for t, r in enumerate(records)
        if r.decision.actions.op[member] == op and r.result.outcome.executed[member]
    ]
    assert len(done) == 1, (member, op, done)
    return done[0]


def test_contributions_of_live_seeds_are_held_and_partly_advanced(records):
    """What has been paid ahead is half of the newest contribution, step by step."""
    for member in range(6):
        found = np.nan_to_num(contribution(records, member))[:DECIDED]
        ahead = history(records, member, "advance")[:DECIDED].cumsum()
        np.testing.assert_allclose(ahead, CONFIG.advance * found, atol=1e-12)
        assert found.any(), "there is something to hold"
        for name in ("payout", "clawback"):
            assert not history(records, member, name)[:DECIDED].any()


@pytest.mark.parametrize("member", [KEEPS, KEEPS_THEN_BREAKS])
def test_fossilising_pays_the_account_out_once(records, member):
    at = step_of(records, member, LifecycleOp.FOSSILIZE)
    payout = history(records, member, "payout")
    ahead = history(records, member, "advance")
    worth = contribution(records, member)[at]
    assert worth > 0, "the gate sees to it"
    assert not np.delete(payout, at).any()
    assert payout[at] == pytest.approx(worth - ahead[:at].sum(), abs=1e-12)
    assert not ahead[at:].any()
    assert not history(records, member, "clawback").any()
    assert earned(records, member) == pytest.approx(worth, abs=1e-12)


@pytest.mark.parametrize("member", [PRUNES, FADES])
def test_pruning_claws_back_all_that_was_paid_ahead(records, member):
    at = step_of(records, member, LifecycleOp.PRUNE)
    clawback = history(records, member, "clawback")
    ahead = history(records, member, "advance")
    assert ahead[:at].sum() != 0
    assert np.flatnonzero(clawback).tolist() == [at]
    assert clawback[at] == pytest.approx(-ahead[:at].sum(), abs=1e-12)
    assert not ahead[at:].any()
    assert earned(records, member) == pytest.approx(0, abs=1e-12)


def test_a_seed_that_fades_earns_nothing_on_its_way(records):
    """Its alpha is above 0 and its contribution measured for two steps more."""
    stages = [r.reward_inputs.stage_ES[FADES, 0] for r in records]
    assert stages[DECIDED + 1 : DECIDED + 3] == [SeedStage.BLENDING] * 2
    assert np.isfinite(contribution(records, FADES)[DECIDED + 1 : DECIDED + 3]).all()
    assert SeedStage.EMBARGOED in stages[DECIDED + 3 :]
    for name in ("advance", "payout", "clawback"):
        assert not history(records, FADES, name)[DECIDED + 1 :].any()


def test_a_rollback_claws_back_what_live_seeds_were_paid(records):
    struck = records[BROKEN]
    assert struck.governor.rolled_back_E.tolist() == [m in (3, 4) for m in range(6)]
    assert struck.reward_inputs.stage_ES[BREAKS, 0] == SeedStage.PRUNED
    ahead = history(records, BREAKS, "advance")[:BROKEN].sum()
    assert ahead != 0
    clawback = history(records, BREAKS, "clawback")
    assert np.flatnonzero(clawback).tolist() == [BROKEN]
    assert clawback[BROKEN] == pytest.approx(-ahead, abs=1e-12)
    assert earned(records, BREAKS) == pytest.approx(0, abs=1e-12)
    parts = {name: struck.rewards.part(name)[BREAKS] for name in struck.rewards.names}
    assert parts["rollback"] == -CONFIG.rollback_penalty
    assert parts["upkeep"] == parts["rent"] == 0
    assert struck.rewards.total[BREAKS] == pytest.approx(-ahead - CONFIG.rollback_penalty)


def test_a_rollback_leaves_permanent_seeds_what_they_were_paid(records):
    struck = records[BROKEN]
    assert struck.reward_inputs.stage_ES[KEEPS_THEN_BREAKS, 0] == SeedStage.FOSSILIZED
    assert struck.rewards.total[KEEPS_THEN_BREAKS] == -CONFIG.rollback_penalty


def test_the_end_claws_back_from_seeds_still_on_trial(records):
    assert records[-1].reward_inputs.stage_ES[DAWDLES, 0] == SeedStage.HOLDING
    clawback = history(records, DAWDLES, "clawback")
    ahead = history(records, DAWDLES, "advance").sum()
    assert ahead != 0
    assert np.flatnonzero(clawback).tolist() == [STEPS - 1]
    assert earned(records, DAWDLES) == pytest.approx(0, abs=1e-12)


def test_what_was_not_committed_pays_at_most_minus_its_upkeep(records):
    total = sum(record.rewards.total for record in records)
    upkeep = sum(record.rewards.part("upkeep") for record in records)
    for member in (PRUNES, FADES, DAWDLES):
        assert upkeep[member] < 0
        assert total[member] <= upkeep[member] + 1e-12
    assert (total[[KEEPS, KEEPS_THEN_BREAKS]] > total[[PRUNES, BREAKS]]).all()


def test_parts_sum_exactly_and_are_finite(records):
    for record in records:
        added = sum(record.rewards.part(name) for name in record.rewards.names)
        assert np.array_equal(added, record.rewards.total)
        assert np.isfinite(record.rewards.total).all()
