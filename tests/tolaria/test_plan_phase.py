"""The plan phase: static topologies are inside what a policy may do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from context_support import EMPTY, PlanDiary, Planner, fixed_budget, member_tensors, planned_engine
from esper.leyline import PLANNED, EsperError, LifecycleOp, SeedStage, VetoReason
from esper.leyline.payloads import SeedGerminated
from esper.tamiyo.baselines import RandomPolicy, StaticTopology

TOPOLOGY = np.array([[EMPTY, 0, EMPTY], [2, EMPTY, 1], [EMPTY, EMPTY, EMPTY]])


def test_a_planned_member_is_the_static_member_bit_for_bit():
    planned, static = planned_engine(), planned_engine()
    first = planned.run_rollout(Planner(TOPOLOGY))
    second = static.run_rollout(StaticTopology(TOPOLOGY))
    assert first.outcome.score_E.tolist() == second.outcome.score_E.tolist()
    assert first.outcome.blueprint_ES.tolist() == TOPOLOGY.tolist()
    for member in range(3):
        left, right = member_tensors(planned, member), member_tensors(static, member)
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert torch.equal(value, right[name]), (member, name)


def test_every_slot_is_decided_once_before_the_first_step():
    engine, diary, policy = planned_engine(), PlanDiary(), Planner(TOPOLOGY)
    rollout = engine.run_rollout(policy, diary)
    assert (rollout.plan_decisions, rollout.steps, rollout.decisions) == (3, 5, 8)
    assert [record.signals.plan_slot for record in diary.plans] == [0, 1, 2]
    planning = [obs.planning for obs, _ in policy.seen]
    assert planning == [True] * 3 + [False] * 5
    indices = [obs.decision_index for obs, _ in policy.seen]
    assert len(set(indices)) == len(indices), "every decision has random streams of its own"
    assert indices[3:] == list(range(5))


def test_only_waiting_and_planting_in_the_slot_at_hand_is_legal():
    policy = Planner(TOPOLOGY)
    planned_engine().run_rollout(policy)
    for obs, masks in policy.seen:
        if not obs.planning:
            assert not masks.op_EO[:, LifecycleOp.PLANT].any()
            continue
        legal = {op for op in LifecycleOp if masks.op_EO[:, op].any()}
        assert legal == {LifecycleOp.WAIT, LifecycleOp.PLANT}
        slots = np.flatnonzero(masks.slot_EOS[:, LifecycleOp.PLANT].any(axis=0))
        assert slots.tolist() == [obs.plan_slot]


def test_rewards_of_plan_and_steps_sum_to_the_final_minus_the_hosts_score():
    """What planting costs is paid for when it is planted."""
    engine = planned_engine()
    outcome = engine.run_rollout(Planner(TOPOLOGY)).outcome
    host = planned_engine()
    host.run_rollout(Planner(np.full_like(TOPOLOGY, EMPTY)))
    gained_E = outcome.score_E - host.episode.score_TE[0]
    np.testing.assert_allclose(outcome.episode_return_E, gained_E, atol=1e-12)


def test_the_first_step_is_rewarded_against_the_members_as_planted():
    """A seed that was planted before training is no change of the first step."""
    inputs = []

    class Watching(Planner):
        def store(self, given, terminal_E):
            inputs.append(given)
            return super().store(given, terminal_E)

    planned_engine().run_rollout(Watching(TOPOLOGY))
    first = next(given for given in inputs if not given.planning)
    planted_ES = TOPOLOGY != EMPTY
    assert (first.stage_before_ES[planted_ES] == SeedStage.PLANTED).all()
    np.testing.assert_array_equal(first.stage_before_ES, first.stage_ES)


def test_planted_seeds_are_prunable_and_then_gone():
    prune = {1: [(LifecycleOp.PRUNE, 1, 0)]}
    engine, diary = planned_engine(), PlanDiary()
    outcome = engine.run_rollout(Planner(TOPOLOGY, prune), diary).outcome
    assert diary.records[1].result.outcome.executed[1]
    assert outcome.blueprint_ES.tolist() == [[EMPTY, 0, EMPTY], [EMPTY, EMPTY, 1], [EMPTY] * 3]
    assert outcome.pruned_E.tolist() == [0, 1, 0]
    kinds = [type(event) for event in diary.slot_events]
    assert SeedGerminated in kinds


def test_a_planted_seed_contributes_and_is_measured():
    diary = PlanDiary()
    planned_engine().run_rollout(Planner(TOPOLOGY), diary)
    last = diary.records[-1].signals
    planted_ES = last.slots.stage_ES == SeedStage.PLANTED
    assert planted_ES.tolist() == (TOPOLOGY != EMPTY).tolist()
    assert np.isfinite(last.slots.contribution_ES[planted_ES]).all()
    assert (last.slots.alpha_ES[planted_ES] == 1).all()


def test_a_rollback_brings_planted_seeds_back():
    """They are part of the snapshot, unlike seeds on trial."""
    engine = planned_engine(episode_length=6)
    policy = Planner(TOPOLOGY, {1: [(LifecycleOp.PRUNE, 1, 0)]})
    engine.begin_episode(policy)
    engine._plan(policy, ())
    life = engine.env.model.lifecycle
    for step in range(4):
        if step == 3:
            engine.env.model.network.host.flat_EP.detach()[1] = torch.nan
        record = engine.step_members(policy)
    assert record.governor.rolled_back_E.tolist() == [False, True, False]
    assert life.stage_ES[1].tolist() == [SeedStage.PLANTED, SeedStage.DORMANT, SeedStage.PLANTED]
    assert torch.isfinite(engine.env.model.network.host.flat_EP[1]).all()


def test_a_stopped_member_stays_as_it_is_and_saves_what_is_left():
    stop = {1: [(LifecycleOp.STOP, 0, 0)]}
    engine, diary = planned_engine(), PlanDiary()
    outcome = engine.run_rollout(Planner(TOPOLOGY, stop), diary).outcome
    assert engine.episode.score_TE[2:, 0].tolist() == [engine.episode.score_TE[2, 0]] * 4
    assert outcome.flops_ratio_E[0] == pytest.approx(0.4, abs=0.1)
    assert (outcome.flops_ratio_E[1:] > 0.8).all()
    after = diary.records[2:]
    assert all(not record.masks.op_EO[0, 1:].any() for record in after), "only WAIT is left"
    assert all(
        record.signals.context.stopped_E.tolist() == [True, False, False] for record in after
    )


def test_the_others_do_not_notice_who_stops():
    quiet, stopping = planned_engine(), planned_engine()
    quiet.run_rollout(Planner(TOPOLOGY))
    stopping.run_rollout(Planner(TOPOLOGY, {1: [(LifecycleOp.STOP, 0, 0)]}))
    for member in (1, 2):
        left, right = member_tensors(quiet, member), member_tensors(stopping, member)
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_stopping_pays_back_the_price_of_compute_without_a_clock():
    """Score constant c_f per run of the host: three fifths of it are not trained."""
    context = replace(PLANNED, clock="steps")
    engine = planned_engine(context)
    before = engine.spec.score.c_f * 3 / 5
    outcome = engine.run_rollout(
        Planner(np.full_like(TOPOLOGY, EMPTY), {1: [(LifecycleOp.STOP, 0, 0)]})
    ).outcome
    assert outcome.flops_ratio_E.tolist() == pytest.approx([0.4, 1.0, 1.0])
    gained = outcome.score_E[0] - engine.episode.score_accuracy_TE[2, 0]
    assert gained == pytest.approx(before, abs=1e-9)


def test_nothing_grows_in_a_closed_slot():
    actions = {
        0: [(LifecycleOp.CLOSE, 2, 1)],
        1: [(LifecycleOp.GERMINATE, 2, 1), (LifecycleOp.CLOSE, 0, 1)],
    }
    diary = PlanDiary()
    planned_engine().run_rollout(Planner(TOPOLOGY, actions), diary)
    assert diary.records[0].result.outcome.executed[2]
    veto_E = diary.records[1].result.outcome.veto
    assert veto_E[2] == VetoReason.SLOT_CLOSED
    assert veto_E[0] == VetoReason.WRONG_STAGE, "a slot with a seed cannot be closed"


def test_stop_with_nothing_trained_is_vetoed():
    """A budget of one batch a run: the first steps train nothing."""
    runs = 1 / (2 * 5)
    diary = PlanDiary()
    stop = {0: [(LifecycleOp.STOP, 0, 0)], 4: [(LifecycleOp.STOP, 1, 0)]}
    engine = planned_engine(fixed_budget(runs))
    engine.run_rollout(Planner(np.full_like(TOPOLOGY, EMPTY), stop), diary)
    assert diary.records[0].result.outcome.veto[0] == VetoReason.NOTHING_TRAINED
    life = engine.env.model.lifecycle
    life.trained_E[:] = False
    with pytest.raises(EsperError, match=r"STOP of member 0.*NOTHING_TRAINED"):
        life.stop([0])


def test_classic_contexts_have_no_new_operations():
    policy = Planner(TOPOLOGY)
    planned_engine(replace(PLANNED, actions="grow")).run_rollout(policy)
    assert len(policy.seen) == 5
    for obs, masks in policy.seen:
        assert not obs.planning
        assert not masks.op_EO[:, LifecycleOp.PLANT :].any()


def test_random_plans_and_growth_never_break_a_run():
    engine = planned_engine(members=8, episode_length=14)
    for _ in range(2):
        outcome = engine.run_rollout(RandomPolicy(3)).outcome
        assert np.isfinite(outcome.score_E).all()
