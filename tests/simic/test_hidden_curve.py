"""Hidden learning curves: nothing that training showed moves an action, all else still does."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from context_support import PlanDiary
from engine_support import Diary, small_engine
from esper.leyline import VARIED, EsperError, TrainingSignals
from esper.leyline.signals import SlotReports
from esper.simic.agent import PPOConfig
from esper.simic.client import ActingMode, SimicClient
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.curve import HIDDEN_SLOT_VALUES, HIDDEN_VALUES, draw_hidden, hide_curve
from esper.tamiyo.features import batch_signals_to_features
from loop_support import small_agent, small_client, tiny_task
from ppo_support import shaken

STEPS, MEMBERS = 8, 6
SPEC = replace(tiny_task(episode_length=STEPS), context=VARIED)


@pytest.fixture(scope="module")
def records():
    """Real observations, of a random enough policy."""
    diary = PlanDiary()
    small_engine(SPEC, diary, members=MEMBERS).run_rollout(small_client(SPEC))
    return [*diary.plans, *diary.records]


def with_another_curve(signals: TrainingSignals) -> TrainingSignals:
    """Other losses, accuracies, gradients and contributions; nothing else is different."""
    rng = np.random.default_rng(signals.step)

    def other(struct, names):
        moved = {}
        for name in names:
            value = getattr(struct, name)
            if value.dtype == np.bool_:
                moved[name] = ~value
            elif value.dtype.kind == "f":
                moved[name] = rng.uniform(0.2, 0.9, value.shape).astype(value.dtype)
            else:
                moved[name] = value + 3
        return moved

    slots = replace(signals.slots, **other(signals.slots, HIDDEN_SLOT_VALUES))
    return replace(signals, slots=slots, **other(signals, HIDDEN_VALUES))


def ops_of(client, records, change=lambda signals: signals):
    """What it would do in each of these observations, and how likely."""
    state, found = client.initial_state(MEMBERS), []
    for record in records:
        decision, state = client.act(change(record.signals), record.masks, state)
        found.append(decision)
    return found


def pairs(one, two):
    """Decisions side by side, without the last step, at which only WAIT is legal."""
    return list(zip(one, two, strict=True))[:-1]


def moves(one, two) -> list[float]:
    """Largest difference between probabilities of operations, per decision."""
    return [np.abs(a.op_probability_EO - b.op_probability_EO).max() for a, b in pairs(one, two)]


@pytest.mark.parametrize("mode", [ActingMode.GREEDY, ActingMode.SAMPLE])
def test_with_the_curve_hidden_actions_do_not_depend_on_it(records, mode):
    agent = shaken(small_agent(SPEC))
    blind = SimicClient(agent, ScoreReward(SPEC.upkeep), mode, hide_curve=True)
    assert ops_of(blind, records) == ops_of(blind, records, with_another_curve)
    seeing = SimicClient(agent, ScoreReward(SPEC.upkeep), mode)
    one, two = ops_of(seeing, records), ops_of(seeing, records, with_another_curve)
    assert min(moves(one, two)) > 1e-3, "the same agent, not blind, sees the difference"
    assert any(not np.array_equal(a.actions.op, b.actions.op) for a, b in pairs(one, two))


def test_a_blind_policy_still_sees_prices_and_slots(records):
    agent = shaken(small_agent(SPEC))
    blind = SimicClient(agent, ScoreReward(SPEC.upkeep), ActingMode.GREEDY, hide_curve=True)

    def dearer(signals):
        context = replace(signals.context, price_E=signals.context.price_E * 10)
        return replace(signals, context=context)

    assert min(moves(ops_of(blind, records), ops_of(blind, records, dearer))) > 1e-3


def test_hidden_are_these_members_alone(records):
    signals = records[-1].signals
    hidden_E = np.arange(MEMBERS) % 2 == 0
    seen, plain = (batch_signals_to_features(it) for it in (hide_curve(signals, hidden_E), signals))
    assert np.array_equal(seen.global_EG[~hidden_E], plain.global_EG[~hidden_E])
    assert (seen.global_EG[hidden_E] != plain.global_EG[hidden_E]).any(axis=1).all()
    assert np.array_equal(seen.candidate_ESKD, plain.candidate_ESKD)
    assert hide_curve(signals, np.zeros(MEMBERS, dtype=bool)) is signals
    untouched = with_another_curve(signals)
    everyone = np.ones(MEMBERS, dtype=bool)
    assert hide_curve(untouched, everyone) == hide_curve(signals, everyone)


STRUCTURE = {
    "round_index", "step", "episode_length", "params_over_host_E", "macs_over_host_E",
    "seed_budget_left_E", "last_op_E", "last_slot_E", "last_executed_E", "slots", "channels_S",
    "depth_S", "resolution_S", "context", "candidates", "plan_slot",
}  # fmt: skip
"""Fields that say what was done and what it costs, not what training showed."""


def test_every_field_of_the_signals_is_either_hidden_or_structure():
    assert {f.name for f in fields(TrainingSignals)} == STRUCTURE | set(HIDDEN_VALUES)
    assert set(HIDDEN_SLOT_VALUES) < {f.name for f in fields(SlotReports)}


# ---- dropout ----------------------------------------------------------------------------------


def test_whole_episodes_of_some_members_are_drawn_by_round_and_member():
    drawn = np.array([draw_hidden(0.3, 7, r, np.arange(400)) for r in range(5)])
    assert drawn.mean() == pytest.approx(0.3, abs=0.03)
    assert len({row.tobytes() for row in drawn}) == 5
    part = draw_hidden(0.3, 7, 2, np.arange(40, 50))
    assert np.array_equal(part, drawn[2, 40:50]), "independent of who else is there"
    assert not np.array_equal(drawn[0], draw_hidden(0.3, 8, 0, np.arange(400)))


def known_curves(client) -> np.ndarray:
    """`[T, E]` whether the curve of a step was seen in a rollout."""
    diary, spec = Diary(), tiny_task(episode_length=4)
    seen = []
    from esper.simic import client as module
    from esper.tamiyo.features import FEATURE_NAMES

    def spy(signals, restarts):
        obs = batch_signals_to_features(signals, restarts)
        seen.append(obs.global_EG[:, FEATURE_NAMES.whole.index("val_loss_finite")] == 1)
        return obs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "batch_signals_to_features", spy)
        engine = small_engine(spec, diary, members=16)
        while engine.round < 1:
            client.update(engine.run_rollout(client))
    return np.array(seen)


def test_learning_with_dropout_hides_whole_episodes():
    spec = tiny_task(episode_length=4)
    client = small_client(spec, curve_dropout=0.5)
    known = known_curves(client)
    hidden_E = draw_hidden(0.5, client.agent.seed, 0, np.arange(16))
    assert 0 < hidden_E.sum() < 16
    assert np.array_equal(known, np.tile(~hidden_E, (4, 1)))
    assert known_curves(small_client(spec)).all(), "none by default"


def test_evaluation_has_no_dropout():
    spec = tiny_task(episode_length=4)
    assert known_curves(small_client(spec, mode=ActingMode.SAMPLE, curve_dropout=1.0)).all()
    agent = small_agent(spec)
    blind = SimicClient(agent, ScoreReward(spec.upkeep), ActingMode.SAMPLE, hide_curve=True)
    assert not known_curves(blind).any()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(EsperError, match="curve_dropout"):
        PPOConfig(curve_dropout=share)
