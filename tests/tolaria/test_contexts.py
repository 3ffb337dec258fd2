"""Contexts in the engine: seen, paid, enforced, and the same for everybody who meets them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from context_support import EMPTY, PlanDiary, Planner, planned_engine
from engine_support import histories, small_engine, small_task
from esper.leyline import (
    PLANNED,
    ContextSpec,
    EngineListener,
    LifecycleOp,
    Range,
)
from esper.leyline.context import VARIED as ALL_VARIED
from esper.tamiyo.baselines import RandomPolicy, WaitPolicy

VARIED = replace(ALL_VARIED, budget=Range(1.0, 2.0))  # large budgets take long
BARE = np.full((3, 3), EMPTY)


def test_the_price_of_a_member_is_paid_by_its_score():
    """Planted alike, at prices 1 and 4: the rent differs by its factor."""
    topology = np.array([[0, EMPTY, EMPTY]] * 3)
    cheap = planned_engine()
    dear = planned_engine(replace(PLANNED, price=Range(4.0, 4.0)))
    first, second = cheap.run_rollout(Planner(topology)), dear.run_rollout(Planner(topology))
    assert first.outcome.accuracy_E.tolist() == second.outcome.accuracy_E.tolist()
    rent_E = first.outcome.accuracy_E - first.outcome.score_E
    np.testing.assert_allclose(second.outcome.accuracy_E - second.outcome.score_E, 4 * rent_E)


def test_prices_caps_and_budget_are_seen():
    diary = PlanDiary()
    engine = planned_engine(replace(VARIED, capped=1.0))
    engine.run_rollout(Planner(BARE), diary)
    context, seen = engine.context, diary.records[-1].signals.context
    assert seen.price_E.tolist() == context.members.price_E.tolist()
    assert seen.params_cap_E.tolist() == context.members.params_cap_E.tolist()
    assert seen.budget == context.round.budget
    assert (seen.spent_E > 0.7).all()
    assert len(set(seen.price_E)) == 3


def test_the_fixed_context_is_the_engine_without_contexts():
    plain, fixed = small_engine(), small_engine(replace(small_task(), context=ContextSpec()))
    plain.run_rollout(RandomPolicy(1))
    fixed.run_rollout(RandomPolicy(1))
    for name, values in histories(plain.episode).items():
        np.testing.assert_array_equal(values, histories(fixed.episode)[name], err_msg=name)


def test_learning_rates_follow_the_factor():
    engine = planned_engine(replace(PLANNED, learning_rate=Range(0.3, 3.0)))
    engine.run_rollout(WaitPolicy())
    factor_E = engine.context.members.learning_rate_E
    spec = engine.spec
    host, seed = spec.optim.rates_at(spec.episode_length - 1, spec.episode_length)
    trainer = engine.env.model.trainer
    np.testing.assert_allclose(trainer.host_lr_E.numpy(), host * factor_E, rtol=1e-6)
    np.testing.assert_allclose(trainer.seed_lr_E.numpy(), seed * factor_E, rtol=1e-6)


def test_a_round_does_not_depend_on_the_rounds_before_it():
    """Resumed at round 2, the engine meets the same contexts and data."""
    whole, resumed = planned_engine(VARIED), planned_engine(VARIED)
    data, results, seen = whole.batches.examples, [], []
    for _ in range(3):
        results.append(whole.run_rollout(RandomPolicy(5)).outcome)
        seen.append(data.clone())
    assert not torch.equal(seen[0], seen[1]), "in place: captured graphs read the same memory"
    resumed.load_state_dict(resumed.state_dict() | {"round": 2})
    again = resumed.run_rollout(RandomPolicy(5)).outcome
    assert again.score_E.tolist() == results[2].score_E.tolist()


def test_a_share_of_the_data_is_all_that_is_trained_on():
    engine = planned_engine(replace(PLANNED, data_share=Range(0.25, 0.25)))
    engine.run_rollout(WaitPolicy())
    assert engine.batches.used == 50
    order = engine.batches._make_order(0, 10)
    assert int(order.max()) < 50


def test_caps_are_enforced_by_the_masks():
    engine = planned_engine(replace(VARIED, capped=1.0, cap=Range(0.0, 0.6)), members=8)
    costs, most = engine.context.costs, np.zeros(8)

    class Watch(PlanDiary):
        def on_step(self, record):
            life = engine.env.model.lifecycle
            reserved_E, _ = costs.reserved(life.blueprint_ES, life.style_ES)
            np.maximum(most, reserved_E, out=most)

    watch = Watch()
    assert isinstance(watch, EngineListener)
    for _ in range(2):
        outcome = engine.run_rollout(RandomPolicy(2), watch).outcome
        assert np.isfinite(outcome.score_E).all()
        assert (most <= engine.context.members.params_cap_E).all()
        most[:] = 0


def test_members_with_one_number_are_twins_until_they_act():
    engine = planned_engine(replace(VARIED, capped=0.0), members=4, member_ids=(5, 5, 9, 9))
    engine.run_rollout(WaitPolicy())
    weights = engine.env.model.network.host.flat_EP
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[0], weights[2])
    price_E = engine.context.members.price_E
    assert price_E[0] == price_E[1] != price_E[2]


def test_context_numbers_choose_the_context_and_nothing_else():
    spec = replace(PLANNED, price=Range(0.1, 4.0))
    plain = planned_engine(spec)
    swapped = planned_engine(spec, context_ids=(1, 0, 2))
    plain.run_rollout(WaitPolicy())
    swapped.run_rollout(WaitPolicy())
    prices = plain.context.members.price_E
    assert swapped.context.members.price_E.tolist() == prices[[1, 0, 2]].tolist()
    weights = [e.env.model.network.host.flat_EP for e in (plain, swapped)]
    assert torch.equal(*weights)


def test_candidates_say_what_a_seed_costs_and_whether_it_fits():
    diary = PlanDiary()
    engine = planned_engine(replace(PLANNED, price=Range(0.1, 4.0)))
    engine.run_rollout(Planner(BARE), diary)
    signals = diary.records[0].signals
    candidates, costs = signals.candidates, engine.context.costs
    constants, price_E = engine.spec.score, signals.context.price_E
    params = candidates.params_SK / costs.host_params
    macs = candidates.macs_SK / costs.host_macs
    rent = constants.c_p * np.log2(1 + params) + constants.c_m * np.log2(1 + macs)
    np.testing.assert_allclose(candidates.rent_ESK, price_E[:, None, None] * rent, rtol=1e-5)
    training = engine.context.training_costs
    share = training.seed_SK / (training.host + training.seed_SK)
    np.testing.assert_allclose(candidates.budget_share_ESK[0], share, rtol=1e-6)
    assert (candidates.fits_ESK == engine.env.model.network.fits_SK).all()


def test_only_wait_is_legal_at_the_last_step():
    policy = Planner(BARE)
    planned_engine().run_rollout(policy)
    _, masks = policy.seen[-1]
    assert not masks.op_EO[:, LifecycleOp.WAIT + 1 :].any()
