"""SimicClient: stored rewards, terminals and truncations match the engine's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, small_engine
from esper.leyline import LifecycleOp, PolicyProtocol
from esper.leyline.actions import HEADS_BY_OP, ActionHead
from esper.leyline.rewards import RewardComponentsTelemetry
from esper.simic import client as client_module
from esper.simic.agent import RolloutBuffer
from esper.simic.agent.update import evaluate
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.score import ScoreReward
from esper.simic.training.runner import run_ppo_updates
from esper.tamiyo.features import batch_signals_to_features
from loop_support import same_agents, small_agent, small_client, tiny_task, weights
from support import refused
from tamiyo_support import assert_within

BROKEN = 1


@pytest.fixture
def learnt_from(monkeypatch):
    """Copies of the buffers that updates were made from, in order."""
    seen: list[RolloutBuffer] = []

    def spy(agent, passes, rollout, normalizer, use_amp):
        assert rollout.ended_TE[-1].all()
        seen.append(copy.deepcopy(rollout))
        return run_ppo_updates(agent, passes, rollout, normalizer, use_amp)

    monkeypatch.setattr(client_module, "run_ppo_updates", spy)
    return seen


def poison(engine) -> None:
    engine.env.model.network.host.flat_EP.detach()[BROKEN, 3] = float("nan")


def poisoned_at(engine_box: list[Any], step: int):
    """A diary's watch that breaks a member so that the next step rolls it back."""

    def watch(record) -> None:
        if record.signals.step == step - 1:
            poison(engine_box[0])

    return watch


def test_it_is_a_policy():
    assert isinstance(small_client(tiny_task()), PolicyProtocol)


def test_what_is_stored_is_what_the_engine_paid_and_saw(learnt_from):
    spec, diary = tiny_task(), Diary()
    engine, client = small_engine(spec, diary), small_client(spec)
    rollout = engine.run_rollout(client)
    client.update(rollout)
    (kept,) = learnt_from
    assert kept.filled == len(diary.records) == spec.episode_length
    for t, record in enumerate(diary.records):
        np.testing.assert_array_equal(kept.reward_TE[t], record.rewards.total)
        np.testing.assert_array_equal(kept.terminal_TE[t], record.reward_inputs.terminal)
        np.testing.assert_allclose(kept.value_TE[t], record.decision.value_E)
        counted = [list(HEADS_BY_OP[LifecycleOp(op)]) for op in record.decision.actions.op]
        for member, heads in enumerate(counted):
            asked = [record.decision.actions.of(head)[member] for head in heads]
            assert kept.choice_TEA[t, member, heads].tolist() == asked
        confidence = np.exp(kept.log_prob_TEA[t].numpy())
        np.testing.assert_allclose(confidence, record.decision.head_confidence_EA, rtol=1e-6)
        seen = batch_signals_to_features(record.signals)
        np.testing.assert_array_equal(kept.global_TEG[t].numpy(), np.clip(seen.global_EG, -10, 10))
        np.testing.assert_array_equal(kept.slot_TESF[t].numpy(), np.clip(seen.slot_ESF, -10, 10))
        np.testing.assert_array_equal(kept.op_TEO[t].numpy(), record.masks.op_EO)
    np.testing.assert_allclose(
        kept.reward_TE[: kept.filled].sum(axis=0), rollout.outcome.episode_return_E, atol=1e-12
    )


def test_scaled_rewards_times_the_scale_are_the_returns_of_episodes(learnt_from):
    """Whole or cut into pieces: what advantages are made of adds up to what was reported."""
    for pieces in (None, 3):
        learnt_from.clear()
        spec = tiny_task()
        engine, client = small_engine(spec, rollout_steps=pieces), small_client(spec)
        for _ in range(1 if pieces is None else 3):
            rollout = engine.run_rollout(client)
            client.update(rollout)
        normalizer = client.agent.reward_normalizer
        total = sum(
            (normalizer.normalize(kept.reward_TE[: kept.filled]) * normalizer.scale).sum(axis=0)
            for kept in learnt_from
        )
        assert normalizer.scale != 1.0
        np.testing.assert_allclose(total, rollout.outcome.episode_return_E, atol=1e-12)


def test_a_whole_episode_ends_in_terminals_and_needs_no_value(learnt_from, monkeypatch):
    spec = tiny_task()
    engine, client = small_engine(spec), small_client(spec)
    monkeypatch.setattr(client.agent, "value", None)
    client.update(engine.run_rollout(client))
    (kept,) = learnt_from
    assert kept.terminal_TE[kept.filled - 1].all()
    assert not kept.terminal_TE[: kept.filled - 1].any()
    assert not kept.truncated_TE.any()
    assert not kept.bootstrap_TE.any()


def test_a_cut_rollout_goes_on_with_the_value_of_what_comes_next(learnt_from):
    spec = tiny_task()
    engine, client = small_engine(spec, rollout_steps=5), small_client(spec)
    first = engine.run_rollout(client)
    features = batch_signals_to_features(first.final_signals)
    expected = client.agent.value(features, first.final_masks, first.final_state)
    carried = first.final_state
    client.update(first)
    client.update(engine.run_rollout(client))
    kept, rest = learnt_from
    assert (kept.filled, rest.filled) == (5, 3)
    assert kept.truncated_TE[4].all()
    assert not kept.terminal_TE[:5].any()
    np.testing.assert_allclose(kept.bootstrap_TE[4], expected)
    assert np.abs(expected).max() > 0
    assert torch.equal(rest.hidden_ED, carried.hidden_ED), "the state goes on into the next part"
    assert carried.hidden_ED.abs().max() > 0
    assert rest.terminal_TE[2].all()
    assert not rest.bootstrap_TE[:3].any()


def test_a_rollback_is_a_terminal_and_the_state_starts_anew_behind_it(learnt_from):
    when, spec, box = 3, tiny_task(), []
    diary = Diary(poisoned_at(box, when))
    engine = small_engine(spec, diary, governor=CALM)
    box.append(engine)
    client = small_client(spec)
    rollout = engine.run_rollout(client)
    assert rollout.outcome.rollbacks_E.tolist() == [0, 1, 0, 0]
    agent = copy.deepcopy(client.agent)
    client.update(rollout)
    (kept,) = learnt_from
    ends = np.zeros((8, 4), dtype=bool)
    ends[-1] = True
    ends[when, BROKEN] = True
    np.testing.assert_array_equal(kept.terminal_TE, ends)
    inputs = diary.records[when].reward_inputs
    way = inputs.snapshot_score_E[BROKEN] - inputs.score_before_E[BROKEN]
    assert kept.reward_TE[when, BROKEN] == pytest.approx(way - ScoreReward().rollback_penalty)
    batch = kept.minibatch(torch.arange(4))
    with torch.no_grad():
        again = evaluate(agent.network, batch, use_amp=False)
    np.testing.assert_allclose(again.choices.log_prob_A, batch.log_prob_TMA, atol=1e-5)
    np.testing.assert_allclose(again.value, kept.value_TE, atol=1e-5)


def test_the_void_action_of_a_rollback_is_not_learnt_from(learnt_from):
    """Whatever was chosen there: with another choice on record the same is learnt."""
    when, spec, box = 5, tiny_task(), []
    diary = Diary(poisoned_at(box, when))
    engine = small_engine(spec, diary, governor=CALM)
    box.append(engine)
    client = small_client(spec, target_kl=None)
    rollout = engine.run_rollout(client)
    other = copy.deepcopy(client)
    assert not diary.records[when].result.outcome.executed[BROKEN] or (
        diary.records[when].decision.actions.op[BROKEN] == LifecycleOp.WAIT
    )
    assert client.buffer.op_TEO[when, BROKEN].sum() > 1, "there was a choice"
    other.buffer.log_prob_TEA[when, BROKEN] = -2.0
    client.update(rollout)
    other.update(rollout)
    (kept, _) = learnt_from
    decided = np.ones((8, 4), dtype=bool)
    decided[when, BROKEN] = False
    decided[-1] = False  # the last step of an episode: nothing but WAIT is legal
    np.testing.assert_array_equal(kept.decided_TE, decided)
    assert same_agents(client.agent, other.agent)


def test_a_rollback_where_the_rollout_is_cut_gets_no_value_beyond(learnt_from):
    spec, box = tiny_task(), []
    engine = small_engine(spec, Diary(poisoned_at(box, 4)), rollout_steps=5, governor=CALM)
    box.append(engine)
    client = small_client(spec)
    rollout = engine.run_rollout(client)
    assert rollout.truncated_bootstrap_targets.member_N.tolist() == [0, 2, 3]
    client.update(rollout)
    (kept,) = learnt_from
    assert kept.terminal_TE[4].tolist() == [False, True, False, False]
    assert kept.truncated_TE[4].tolist() == [True, False, True, True]
    assert kept.bootstrap_TE[4, BROKEN] == 0.0
    assert (kept.bootstrap_TE[4, [0, 2, 3]] != 0).all()


def test_observations_are_normalised_alike_throughout_a_rollout():
    spec = tiny_task()
    client = small_client(spec)
    states: list[dict[str, np.ndarray]] = []

    def watch(record) -> None:
        parts = client.agent.obs_normalizer.parts
        states.append({f"{n}/{k}": v for n, p in parts.items() for k, v in p.state().items()})

    engine = small_engine(spec, Diary(watch))
    for _ in range(2):
        client.update(engine.run_rollout(client))
    length = spec.episode_length
    for rollout in (states[:length], states[length:]):
        for state in rollout[1:]:
            assert all(np.array_equal(state[k], rollout[0][k]) for k in state)
    assert states[0]["global/count"] == 0
    assert states[-1]["global/count"] == 4 * length, "what the first round showed, and no more"


def test_evaluation_leaves_no_mark_and_only_greedy_always_takes_the_likeliest():
    spec = tiny_task()
    agent = small_agent(spec)
    learner = SimicClient(agent, ScoreReward(spec.upkeep))
    learner.update(small_engine(spec).run_rollout(learner))
    before = copy.deepcopy(agent)
    for mode in (ActingMode.GREEDY, ActingMode.SAMPLE):
        diary, client = Diary(), SimicClient(agent, ScoreReward(spec.upkeep), mode)
        rollout = small_engine(spec, diary, seed=9).run_rollout(client)
        assert client.update(rollout) is None
        assert client.buffer is None
        assert same_agents(agent, before)
        assert np.abs(rollout.outcome.episode_return_E).max() > 0, "it is paid all the same"
        decisions = [record.decision for record in diary.records]
        likeliest = [d.actions.op == d.op_probability_EO.argmax(axis=1) for d in decisions]
        assert np.all(likeliest) == (mode is ActingMode.GREEDY)


def test_only_learning_explores():
    from esper.simic.agent.schedule import Schedule

    spec = tiny_task(episode_length=2)
    for mode, certain in ((ActingMode.LEARN, False), (ActingMode.SAMPLE, True)):
        diary = Diary()
        client = small_client(spec, mode=mode, exploration=Schedule(1.0))
        with torch.no_grad():
            for p in client.agent.network.parameters():
                p.mul_(100.0)
        small_engine(spec, diary).run_rollout(client)
        shown = diary.records[0].decision.op_probability_EO.max(axis=1)
        uniform = np.isclose(shown, 0.5, atol=1e-4)
        assert uniform.all() != certain, "all exploration is uniform over WAIT, GERMINATE"


def test_get_action_answers_within_the_masks_and_disturbs_no_rollout(learnt_from):
    spec = tiny_task()
    asked, plain = small_client(spec), small_client(spec)
    answers = []

    def watch(record) -> None:
        state = asked.initial_state(4)
        actions, after = asked.get_action(record.signals, record.masks, state)
        assert after.hidden_ED.shape == state.hidden_ED.shape
        assert_within(record.masks, replace(record.decision, actions=actions))
        answers.append(actions)

    asked.update(small_engine(spec, Diary(watch)).run_rollout(asked))
    plain.update(small_engine(spec).run_rollout(plain))
    assert len(answers) == spec.episode_length
    assert same_agents(asked.agent, plain.agent)


def test_any_callable_may_be_the_reward(learnt_from):
    spec = tiny_task(episode_length=3)

    def per_step(inputs):
        parts = RewardComponentsTelemetry.of({"step": np.full(inputs.members, 0.5)}, inputs.members)
        return parts.total, parts

    client = SimicClient(small_agent(spec), per_step)
    rollout = small_engine(spec).run_rollout(client)
    client.update(rollout)
    assert rollout.outcome.episode_return_E.tolist() == [1.5] * 4
    assert (learnt_from[0].reward_TE == 0.5).all()


def test_a_policy_of_three_slots_decides_for_a_host_of_five():
    three, five = tiny_task(), tiny_task(n_blocks=5, size=32, batch_size=8)
    client = small_client(three)
    client.update(small_engine(three).run_rollout(client))
    before = weights(client.agent)
    diary = Diary()
    engine = small_engine(five, diary, members=6)
    assert len(engine.env.model.slots) == 5
    rollout = engine.run_rollout(client)
    pointed = {
        int(slot)
        for r in diary.records
        for op, slot in zip(r.decision.actions.op, r.decision.actions.slot, strict=True)
        if op != LifecycleOp.WAIT
    }
    assert max(pointed) >= 3
    assert client.update(rollout) is not None
    after = weights(client.agent)
    assert any(not torch.equal(before[name], after[name]) for name in before), "and learns there"


def test_misuse_is_refused_by_name():
    spec = tiny_task(episode_length=3)
    engine, client = small_engine(spec), small_client(spec)
    rollout = engine.run_rollout(client)
    client.update(rollout)
    assert "3 steps, but 0 are stored" in refused(lambda: client.update(rollout))
    engine.run_rollout(client)
    assert "holds 3 steps already" in refused(lambda: engine.run_rollout(client))


def test_heads_no_operation_asked_for_count_nothing():
    """What the engine froze is never learnt: entropy is 0 where a head has one choice."""
    spec = tiny_task()
    frozen = ((ActionHead.STYLE, 0), (ActionHead.TEMPO, 1))
    engine, client = small_engine(spec, frozen_heads=frozen), small_client(spec)
    metrics = client.update(engine.run_rollout(client))
    assert metrics.head_entropy[ActionHead.STYLE] == 0.0
    assert metrics.head_entropy[ActionHead.TEMPO] == 0.0
    assert metrics.head_entropy[ActionHead.BLUEPRINT] > 0.0
