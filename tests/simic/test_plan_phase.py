"""The learner plans: plan decisions are stored before the steps, paid by score, learnt from."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from context_support import PlanDiary
from engine_support import small_engine
from esper.leyline import PLANNED, VARIED, LifecycleOp
from esper.simic import client as client_module
from esper.simic.agent import PPOAgent
from esper.simic.agent.update import evaluate
from esper.simic.client import ActingMode, SimicClient, policy_spec
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.config import TrainingConfig, preset
from esper.simic.training.config_files import resolve
from esper.simic.training.history import ActionTally
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.distribution import action_uniforms
from esper.tamiyo.network_config import GROWING_PRIOR
from esper.tolaria.engine import VectorizedEngine
from loop_support import (
    same_agents,
    small_agent,
    small_client,
    tiny_config,
    tiny_task,
    untimed,
)
from reward_support import EVERY, pay, reward_of, step_inputs

STEPS, MEMBERS = 5, 3
SPEC = replace(tiny_task(episode_length=STEPS), context=PLANNED)
SLOTS = 3


@pytest.fixture
def learnt_from(monkeypatch):
    """Copies of the rollouts that updates were made from, in order."""
    seen = []

    def spy(agent, passes, rollout, normalizer, use_amp):
        seen.append(copy.deepcopy(rollout))
        return run_ppo_updates(agent, passes, rollout, normalizer, use_amp)

    monkeypatch.setattr(client_module, "run_ppo_updates", spy)
    return seen


def test_plan_decisions_are_stored_before_the_steps_counted_and_learnt_from(learnt_from):
    """gamma = lambda = 1: the return of the first plan decision is all that is ever paid."""
    diary, tally = PlanDiary(), ActionTally()
    client = small_client(SPEC, gae_lambda=1.0, normalize_rewards=False)
    engine = small_engine(SPEC, diary, members=MEMBERS)
    rollout = engine.run_rollout(client, tally)
    assert (rollout.steps, rollout.plan_decisions) == (STEPS, SLOTS)
    record = tally.record(rollout, client.update(rollout), MEMBERS, 0.0)
    (kept,) = learnt_from
    assert kept.filled == kept.steps == SLOTS + STEPS
    chosen = [r.decision.actions.op.tolist() for r in (*diary.plans, *diary.records)]
    assert kept.choice_TEA[..., 0].tolist() == chosen
    assert any(LifecycleOp.PLANT in row for row in chosen[:SLOTS])
    assert not kept.terminal_TE[:-1].any()
    assert kept.terminal_TE[-1].all()
    counted = np.bincount(np.concatenate(chosen), minlength=len(LifecycleOp))
    assert record.chosen_O.tolist() == counted.tolist()
    sums = kept.reward_TE[::-1].cumsum(axis=0)[::-1]
    np.testing.assert_allclose(client.agent.targets(kept).return_TE.numpy(), sums, atol=1e-5)


def test_rewards_of_plan_and_steps_sum_to_the_change_from_the_host(learnt_from):
    diary = PlanDiary()
    client = SimicClient(small_agent(SPEC), ScoreReward(SPEC.upkeep))
    engine = small_engine(SPEC, diary, members=MEMBERS)
    client.update(engine.run_rollout(client))
    (kept,) = learnt_from
    kept_upkeep = sum(r.rewards.part("upkeep") for r in diary.records)
    rolled_back = sum(r.rewards.part("rollback") for r in diary.records)
    last = diary.records[-1].reward_inputs.score_E
    planned = [r.rewards.total for r in diary.plans]
    assert all((paid == 0).all() for paid in planned[:-1]), "the last one pays for the whole plan"
    assert planned[-1].any()
    after_plan = diary.records[0].reward_inputs.score_before_E
    host = after_plan - planned[-1]
    total = last - host + kept_upkeep + rolled_back
    np.testing.assert_allclose(kept.reward_TE[: kept.filled].sum(axis=0), total, atol=1e-9)


def test_the_update_sees_the_probabilities_of_plan_and_steps(learnt_from):
    import torch

    client = small_client(SPEC)
    network = copy.deepcopy(client.agent.network)
    client.update(small_engine(SPEC, members=MEMBERS).run_rollout(client))
    batch = learnt_from[0].minibatch(torch.arange(MEMBERS))
    with torch.no_grad():
        again = evaluate(network, batch, use_amp=False).choices.log_prob_A
    np.testing.assert_allclose(again, batch.log_prob_TMA, atol=1e-5)


def test_a_truncated_episode_plans_in_its_first_rollout(learnt_from):
    client = small_client(SPEC)
    engine = small_engine(SPEC, members=MEMBERS, rollout_steps=2)
    rollouts = []
    while engine.round < 1:
        rollouts.append(engine.run_rollout(client))
        client.update(rollouts[-1])
    assert [r.plan_decisions for r in rollouts] == [SLOTS] + [0] * (len(rollouts) - 1)
    assert [kept.filled for kept in learnt_from] == [r.decisions for r in rollouts]
    assert sum(kept.filled for kept in learnt_from) == SLOTS + STEPS


def test_draws_of_a_plan_are_of_their_own_and_those_of_a_step_are_as_ever():
    """Numbers of a step are keyed by it; those of a plan by numbers behind the last step."""
    drawn = []

    def spy(seed, round_index, step, members):
        drawn.append(step)
        return action_uniforms(seed, round_index, step, members)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("esper.simic.agent.agent.action_uniforms", spy)
        small_engine(SPEC, members=MEMBERS).run_rollout(small_client(SPEC))
    assert drawn == [*range(STEPS, STEPS + SLOTS), *range(STEPS)]


def test_presets_plant_every_second_slot_and_seldom_stop():
    prior = dict(zip(LifecycleOp, GROWING_PRIOR, strict=True))
    assert prior[LifecycleOp.PLANT] == prior[LifecycleOp.WAIT], "as likely as leaving it empty"
    chance = np.exp(prior[LifecycleOp.STOP] - prior[LifecycleOp.WAIT])
    assert chance < 0.005, "most episodes of 24 steps end without it"
    for name in ("digits_impaired", "digits_quick", "cifar_baseline"):
        assert preset(name, 3).ppo.network.op_prior[6:] == GROWING_PRIOR[6:]


@pytest.mark.parametrize("task", ["digits_tiny8", "cifar_resnet8", "my_task.py:spec"])
def test_every_task_starts_with_the_growing_prior_and_plain_is_there_by_name(task):
    assert resolve(task=task).ppo.network.op_prior == GROWING_PRIOR
    assert resolve("plain", task=task).ppo.network.op_prior == (0.0,) * len(LifecycleOp)
    assert TrainingConfig().ppo.network.op_prior == GROWING_PRIOR


def stopped_untrained(preset_name: str) -> int:
    """Members of four that an untrained controller stops on digits_tiny8 with varied contexts."""
    config = resolve(preset_name, task="digits_tiny8")
    spec = replace(config.task, contexts=VARIED, batches_per_step=1, batch_size=8).spec()
    people = replace(config.population, envs=4, counterfactual_stride=24, device="cpu")
    engine = VectorizedEngine(spec, people.engine_config(config.seed))
    agent = PPOAgent(policy_spec(), config.ppo, config.seed)
    engine.run_rollout(SimicClient(agent, ScoreReward(spec.upkeep), ActingMode.SAMPLE))
    return int(engine.env.model.lifecycle.stopped_E.sum())


def test_an_untrained_controller_trains_its_members_to_the_end_by_default():
    assert stopped_untrained("") < 2
    assert stopped_untrained("plain") == 4


# ---- rewards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "family"), EVERY)
def test_a_plan_is_paid_by_the_change_of_score_in_every_mode(mode, family):
    plan = step_inputs(0, 4, members=2, score_E=[0.3, 0.1], score_before_E=[0.1, 0.2])
    plan = replace(plan, planning=True)
    total, components = reward_of(mode, family)(plan)
    assert components.names == ("score",)
    np.testing.assert_allclose(total, [0.2, -0.1])


@pytest.mark.parametrize(("mode", "family"), EVERY)
def test_a_plan_leaves_what_the_steps_are_paid_as_it_is(mode, family):
    """Also between episodes: a plan is no step, so it is neither repeated nor skipped."""
    steps = [
        step_inputs(t, 3, score_E=0.1 * t + 0.1, score_before_E=0.1 * t, loss_E=2.0 - 0.2 * t)
        for t in range(3)
    ]
    plan = replace(step_inputs(0, 3, score_E=0.5, score_before_E=0.4), planning=True)
    plain, planning = reward_of(mode, family), reward_of(mode, family)
    for _ in range(2):
        expected = [paid.total for paid in pay(plain, steps)]
        for _ in range(3):
            planning(plan)
        found = [paid.total for paid in pay(planning, steps)]
        np.testing.assert_array_equal(found, expected)


def test_the_wait_curve_is_not_taken_from_a_plan():
    reward = ScoreReward(baseline_curve=(0.1, 0.3, 0.4))
    plan = replace(step_inputs(0, 2, score_E=0.5, score_before_E=0.1), planning=True)
    assert reward(plan)[0].tolist() == [0.4]
    assert reward(step_inputs(0, 2, score_E=0.5, score_before_E=0.1))[0][0] == pytest.approx(0.2)


# ---- runs ------------------------------------------------------------------------------------


def varied_task(**changes):
    return replace(tiny_task(**({"episode_length": STEPS} | changes)), context=VARIED)


def varied_config(rounds: int, **changes):
    config = tiny_config(rounds, envs=MEMBERS)
    ppo = replace(config.ppo, epochs=1, curve_dropout=0.5)
    return replace(config, task=replace(config.task, episode_length=STEPS), ppo=ppo, **changes)


def test_a_run_over_contexts_resumes_bit_for_bit(tmp_path):
    from esper.simic.training.vectorized import train_ppo_vectorized

    whole, history = train_ppo_vectorized(varied_config(2), spec=varied_task())
    train_ppo_vectorized(varied_config(1), run_dir=tmp_path / "run", spec=varied_task())
    resumed, joined = train_ppo_vectorized(
        varied_config(2), run_dir=tmp_path / "run", resume=True, spec=varied_task()
    )
    assert same_agents(whole, resumed)
    assert untimed(history) == untimed(joined)


def test_evaluation_plans_too():
    diary = PlanDiary()
    engine = small_engine(SPEC, diary, members=MEMBERS)
    engine.run_rollout(small_client(SPEC, mode=ActingMode.GREEDY))
    assert [r.signals.plan_slot for r in diary.plans] == [*range(SLOTS)]
