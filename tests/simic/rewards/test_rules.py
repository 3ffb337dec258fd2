"""Properties of every mode and family, on stories run by the real lifecycle."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.actions import CLASSIC_OPS, LifecycleOp, VetoReason
from esper.leyline.stage_masks import IS_LIVE, IS_OCCUPIED
from esper.leyline.stages import SeedStage
from esper.simic.rewards.score import step_upkeep
from esper.simic.rewards.shaped import STAGE_POTENTIAL
from reward_support import (
    EVERY,
    GROWS,
    HOST_PARAMS,
    RULE,
    WAITS,
    Story,
    pay,
    reward_of,
    step_inputs,
    totals,
)

SEEDS = st.integers(0, 15)
"""Stories, told once each."""
every = pytest.mark.parametrize(("mode", "family"), EVERY)
FOSSIL, HOLDING = SeedStage.FOSSILIZED, SeedStage.HOLDING


@cache
def story(seed: int, fossilize: bool = False):
    return tuple(Story(np.random.default_rng(seed), fossilize=fossilize).play())


def test_the_stories_are_eventful():
    """Or the rules below would say little."""
    reported = [inputs for seed in range(5) for inputs in story(seed, fossilize=True)]
    stages = {int(stage) for inputs in reported for stage in inputs.stage_ES[GROWS]}
    assert stages == set(SeedStage) - {SeedStage.GERMINATED, SeedStage.PRUNED, SeedStage.PLANTED}
    ops = {int(inputs.actions.op[GROWS]) for inputs in reported}
    assert ops == set(CLASSIC_OPS) - {LifecycleOp.ADVANCE}


# ---- sums ---------------------------------------------------------------------------------


@given(rule=st.sampled_from(EVERY), seed=SEEDS)
@settings(max_examples=25)
def test_parts_sum_to_the_total_exactly_and_everything_is_finite(rule, seed):
    reward = reward_of(*rule)
    for inputs in story(seed, fossilize=True):
        total, components = reward(inputs)
        added = np.zeros(2)
        for name in components.names:
            added = added + components.part(name)
        assert np.array_equal(total, added)
        assert np.array_equal(total, components.total)
        assert np.isfinite(total).all()


@every
def test_a_member_is_paid_the_same_whatever_company_it_is_in(mode, family):
    """No member reads another's row."""
    reported = story(3, fossilize=True)
    paid = totals(pay(reward_of(mode, family), reported))

    def alone(value):
        if dataclasses.is_dataclass(value):
            return dataclasses.replace(
                value, **{f.name: alone(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        return value[GROWS:] if isinstance(value, np.ndarray) else value

    single = totals(pay(reward_of(mode, family), [alone(inputs) for inputs in reported]))
    assert np.array_equal(single[:, 0], paid[:, GROWS])


# ---- closed cycles ------------------------------------------------------------------------


@given(rule=st.sampled_from(EVERY), seed=SEEDS)
@settings(max_examples=25)
def test_a_closed_cycle_pays_at_most_minus_its_upkeep(rule, seed):
    """Germinate, retarget, prune as you like: against waiting it never pays; `sparse`, which
    charges no upkeep, claims no more than that."""
    (mode, _), reported = rule, story(seed)
    paid = totals(pay(reward_of(*rule), reported)).cumsum(axis=0)
    upkeep = np.cumsum([step_upkeep(inputs, RULE)[GROWS] for inputs in reported])
    assert upkeep[-1] > 0
    closed = [not IS_OCCUPIED[inputs.stage_ES[GROWS]].any() for inputs in reported]
    assert closed[-1]
    gain = paid[:, GROWS] - paid[:, WAITS]
    limit = np.zeros_like(upkeep) if mode == "sparse" else -upkeep
    if mode == "minimal":
        assert gain[:-1] == pytest.approx(-upkeep[:-1], abs=1e-12)
    assert (gain[closed] <= limit[closed] + 1e-9).all()


# ---- all slots, one potential -------------------------------------------------------------


def seeds_in_two_slots(contribution, step=1, **fields):
    return step_inputs(
        step, 10,
        stage_ES=[[HOLDING, FOSSIL]], alpha_ES=1.0, contribution_ES=[contribution], **fields,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["shaped", "simplified", "escrow"])
def test_both_slots_count_at_every_step_whatever_the_action(mode):
    """A change in a slot that no action names moves the reward, and by as much."""
    for op, slot in ((LifecycleOp.WAIT, -1), (LifecycleOp.SET_ALPHA_TARGET, 0)):
        paid = []
        for value in (0.1, 0.3):
            reward = reward_of(mode, advance=0.5)
            reward(step_inputs(0, 10))
            inputs = seeds_in_two_slots([value, 0.2], op=op, target_slot=slot)
            paid.append(reward(inputs)[0][0])
        share = 0.5 if mode == "escrow" else 1.0
        assert paid[1] - paid[0] == pytest.approx(share * 0.2)


@pytest.mark.parametrize("mode", ["shaped", "simplified", "basic_plus"])
def test_permanent_seeds_of_all_slots_count(mode):
    paid = []
    for value in (0.1, 0.3):
        reward = reward_of(mode)
        reward(step_inputs(0, 10))
        paid.append(reward(seeds_in_two_slots([0.2, value]))[0][0])
    assert paid[1] - paid[0] == pytest.approx(0.2 / (10 if mode == "basic_plus" else 1))


@pytest.mark.parametrize("family", ["contribution", "loss"])
@given(seed=SEEDS)
@settings(max_examples=10)
def test_the_potential_telescopes(family, seed):
    """What was paid so far is the potential of the state, and 0 once the episode is over."""
    reported = story(seed, fossilize=True)
    reward = reward_of("shaped", family, stage_weight=0.02, contribution_weight=0.5)
    so_far = np.zeros(2)
    for inputs in reported:
        so_far = so_far + reward(inputs)[1].part("potential")
        if inputs.episode_over:
            break
        expected = 0.02 * STAGE_POTENTIAL[inputs.stage_ES].sum(axis=1)
        if family == "contribution":
            worth = np.nan_to_num(inputs.contribution_ES) * IS_OCCUPIED[inputs.stage_ES]
            expected = expected + 0.5 * worth.sum(axis=1)
        else:
            expected = expected + 0.5 * reward.family.worth_ES.sum(axis=1)
        np.testing.assert_allclose(so_far, expected, atol=1e-9)
    np.testing.assert_allclose(so_far, 0.0, atol=1e-9)


@pytest.mark.parametrize("family", ["contribution", "loss"])
@given(seed=SEEDS)
@settings(max_examples=5)
def test_shaping_leaves_the_return_of_the_score_as_it_was(family, seed):
    reported = story(seed, fossilize=True)
    shaped = totals(pay(reward_of("shaped", family), reported)).sum(axis=0)
    plain = totals(pay(reward_of("score", family), reported)).sum(axis=0)
    np.testing.assert_allclose(shaped, plain, atol=1e-9)


# ---- the contribution family --------------------------------------------------------------

SEED_PARTS = {
    "shaped": {"potential"},
    "simplified": {"worth"},
    "basic_plus": {"drip"},
    "escrow": {"advance", "payout", "clawback"},
}


@pytest.mark.parametrize("mode", SEED_PARTS)
def test_a_seed_earns_what_the_counterfactual_says_not_the_hosts_progress(mode):
    """Another host, that learns more, with the same contributions: the same for its seeds."""
    reported = story(3, fossilize=True)
    better = [
        dataclasses.replace(
            inputs,
            accuracy_E=inputs.accuracy_E + 0.02 * (t + 1),
            accuracy_before_E=inputs.accuracy_before_E + 0.02 * t,
            score_E=inputs.score_E + 0.02 * (t + 1),
            score_before_E=inputs.score_before_E + 0.02 * t,
            loss_E=inputs.loss_E / (t + 2),
            loss_before_E=inputs.loss_before_E / (t + 1),
        )
        for t, inputs in enumerate(reported)
    ]
    paid = [pay(reward_of(mode), s) for s in (reported, better)]
    earned = 0.0
    for plain, more in zip(*paid, strict=True):
        for name in SEED_PARTS[mode]:
            assert np.array_equal(plain.part(name), more.part(name))
            earned += abs(plain.part(name)[GROWS])
            assert plain.part(name)[WAITS] == 0
    assert earned > 0
    if mode in ("simplified", "escrow"):
        assert np.array_equal(totals(paid[0]), totals(paid[1])), "nothing for the host at all"


@pytest.mark.parametrize("mode", SEED_PARTS)
def test_more_contribution_is_more_pay(mode):
    """Two members alike but for what leaving their seed out costs, to the end of the episode."""
    reward = reward_of(mode)
    stage = [SeedStage.DORMANT, HOLDING, HOLDING, FOSSIL, FOSSIL]
    sums = np.zeros(2)
    for t, now in enumerate(stage):
        inputs = step_inputs(
            t, len(stage), members=2, slots=1,
            stage_ES=now, alpha_ES=float(t > 0),
            contribution_ES=np.nan if t == 0 else [[0.1], [0.3]],
            op=LifecycleOp.FOSSILIZE if t == 2 else LifecycleOp.WAIT, target_slot=0,
        )  # fmt: skip
        paid = reward(inputs)[0]
        sums += paid
        if mode == "shaped" and t == 1:
            break  # over an episode its potential pays nothing
    assert sums[1] > sums[0]


# ---- rollbacks ----------------------------------------------------------------------------


class Snapshot(NamedTuple):
    score: float
    accuracy: float
    loss: float
    params: float


def rolled_back(seed: int, at: int):
    """A story in which member 1 is set back at a step to where it stood before step `at - 3`: its
    live seeds are gone, its figures are the snapshot's, and what was measured is broken."""
    reported = list(story(seed, fossilize=True))
    inputs = reported[at]
    stage = inputs.stage_ES.copy()
    gone = IS_LIVE[stage] & (np.arange(2) == GROWS)[:, None]
    stage[gone] = SeedStage.PRUNED
    broken = np.array([False, True])
    veto = np.where(broken, VetoReason.GOVERNOR, 0).astype(np.int8)
    taken = max(at - 3, 0)
    snapshot = Snapshot(
        score=reported[taken].score_before_E[GROWS],
        accuracy=reported[taken].accuracy_before_E[GROWS],
        loss=reported[taken].loss_before_E[GROWS],
        params=reported[taken - 1].added_params_E[GROWS] if taken else 0.0,
    )
    reported[at] = dataclasses.replace(
        inputs,
        rolled_back_E=broken,
        snapshot_score_E=np.where(broken, snapshot.score, np.nan),
        snapshot_accuracy_E=np.where(broken, snapshot.accuracy, np.nan),
        snapshot_loss_E=np.where(broken, snapshot.loss, np.nan),
        snapshot_params_E=np.where(broken, snapshot.params, np.nan),
        score_E=np.where(broken, np.nan, inputs.score_E),
        accuracy_E=np.where(broken, np.nan, inputs.accuracy_E),
        loss_E=np.where(broken, np.nan, inputs.loss_E),
        contribution_ES=np.where(broken[:, None], np.inf, inputs.contribution_ES),
        alpha_ES=np.where(gone, 0, inputs.alpha_ES).astype(np.float32),
        stage_ES=stage,
        outcome=dataclasses.replace(inputs.outcome, veto=veto),
    )
    if at + 1 < len(reported):
        after = reported[at + 1]
        reported[at + 1] = dataclasses.replace(
            after,
            score_before_E=np.where(broken, snapshot.score, after.score_before_E),
            accuracy_before_E=np.where(broken, snapshot.accuracy, after.accuracy_before_E),
            loss_before_E=np.where(broken, snapshot.loss, after.loss_before_E),
        )
    return reported, snapshot


@every
@pytest.mark.parametrize("at", [0, 12, 47])
def test_a_rollback_is_charged_once_and_nothing_is_nan(mode, family, at):
    reported, _ = rolled_back(3, at)
    paid = pay(reward_of(mode, family, rollback_penalty=0.25), reported)
    assert np.isfinite(totals(paid)).all()
    penalty = np.stack([components.part("rollback") for components in paid])
    assert penalty.sum(axis=0).tolist() == [0, -0.25]
    assert penalty[at, GROWS] == -0.25
    for name in {"upkeep", "rent"} & set(paid[at].names):
        assert paid[at].part(name)[GROWS] == 0


@pytest.mark.parametrize("mode", ["score", "shaped"])
def test_a_rollback_pays_the_way_to_the_snapshot(mode):
    reported, snapshot = rolled_back(3, 12)
    paid = pay(reward_of(mode), reported)
    expected = snapshot.score - reported[12].score_before_E[GROWS]
    assert paid[12].part("score")[GROWS] == pytest.approx(expected)
    if mode == "shaped":
        so_far = sum(components.part("potential")[GROWS] for components in paid[:13])
        assert so_far == pytest.approx(0.0, abs=1e-12), "a terminal has no potential"


@pytest.mark.parametrize(("mode", "part"), [("basic", "progress"), ("basic_plus", "progress")])
@pytest.mark.parametrize("family", ["contribution", "loss"])
def test_progress_over_a_rollback_adds_up_to_where_the_member_ends(mode, part, family):
    """What is lost is charged and what is learnt again is paid: never twice."""
    reported, snapshot = rolled_back(3, 12)
    paid = pay(reward_of(mode, family), reported)
    total = sum(components.part(part)[GROWS] for components in paid)
    first, last = reported[0], reported[-1]
    gained = last.accuracy_E[GROWS] - first.accuracy_before_E[GROWS]
    if family == "loss":
        gained = 1 - last.loss_E[GROWS] / first.loss_before_E[GROWS]
    assert total == pytest.approx(gained)
    way = snapshot.accuracy - reported[12].accuracy_before_E[GROWS]
    if family == "loss":
        way = (reported[12].loss_before_E[GROWS] - snapshot.loss) / first.loss_before_E[GROWS]
    assert paid[12].part(part)[GROWS] == pytest.approx(way), "the way to the snapshot"


@pytest.mark.parametrize("at", [0, 12, 47])
def test_the_loss_familys_score_over_a_rollback_is_that_of_the_snapshot(at):
    """Its loss and what it had grown then, not what was given up; in sum, where the member ends."""
    reported, snapshot = rolled_back(3, at)
    paid = pay(reward_of("score", "loss", rent=0.5), reported)
    so_far = sum(components.part("score")[GROWS] for components in paid[: at + 1])
    first = reported[0].loss_before_E[GROWS]
    price = 0.5 * np.log2(1 + snapshot.params / HOST_PARAMS)
    assert so_far == pytest.approx(1 - snapshot.loss / first - price)
    if at + 1 < len(reported):
        total = sum(components.part("score")[GROWS] for components in paid)
        grown = reported[-1].added_params_E[GROWS] / HOST_PARAMS
        expected = 1 - reported[-1].loss_E[GROWS] / first - 0.5 * np.log2(1 + grown)
        assert total == pytest.approx(expected)


@pytest.mark.parametrize("family", ["contribution", "loss"])
def test_worth_over_a_rollback_is_what_is_left(family):
    """`simplified`: after it, only permanent seeds have been paid for."""
    reported, _ = rolled_back(3, 12)
    reward = reward_of("simplified", family)
    so_far = sum(components.part("worth")[GROWS] for components in pay(reward, reported[:13]))
    fossils = reported[12].stage_ES[GROWS] == FOSSIL
    if family == "contribution":
        left = np.nan_to_num(reported[12].contribution_before_ES[GROWS])[fossils].sum()
    else:
        left = reward.family.worth_ES[GROWS][fossils].sum()
    assert so_far == pytest.approx(left)


# ---- nothing measured ---------------------------------------------------------------------


@every
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_contributions_that_are_not_numbers_pay_nothing(mode, family, value):
    reported = story(18, fossilize=True)

    def spoilt(inputs, contribution):
        everywhere = np.full_like(inputs.contribution_ES, contribution)
        return dataclasses.replace(
            inputs, contribution_ES=everywhere, contribution_before_ES=everywhere
        )

    paid = totals(pay(reward_of(mode, family), [spoilt(i, value) for i in reported]))
    nothing = totals(pay(reward_of(mode, family), [spoilt(i, 0.0) for i in reported]))
    assert np.array_equal(paid, nothing)
