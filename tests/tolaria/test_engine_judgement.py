"""What the engine says seeds are worth is true, and a broken member harms no one, itself included.

Faults are real: NaN in one member's weights, gradients or data, at the first, a middle and the
last step.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, histories, random_policy, small_engine, small_task
from esper.leyline import LifecycleOp, SeedStage
from esper.leyline.actions import ActionHead, ActionSpec, VetoReason
from esper.leyline.payloads import PruneCause, SeedPruned
from esper.leyline.records import PolicyDecision
from esper.leyline.signals import CounterfactualGap, PanicKind
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tolaria.counterfactual_eval import CounterfactualConfig
from fault_support import spoil_next_gradient

PENALTY = ScoreReward().rollback_penalty


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_contributions_are_those_of_leaving_seeds_out(executor):
    """The last step's, recomputed member by member and coalition by coalition."""
    spec = small_task(episode_length=3)
    diary = Diary()
    engine = small_engine(spec, diary, members=3, executor=executor)
    policy = StaticTopology({"r0c0": "conv_light", "r0c1": "conv_heavy", "r0c2": "norm"})
    engine.run_rollout(policy)
    found = diary.records[-1].counterfactuals
    population, data = engine.env.model, spec.load()
    x = torch.from_numpy(data.normalised(data.val_control))[None]
    y = torch.from_numpy(data.val_control.labels)

    def accuracy(member: int, alphas: tuple[float, ...]) -> float:
        with torch.no_grad():
            logits = population.forward(x, [member], np.array([alphas], dtype=np.float32))
        return float((logits[0].argmax(-1) == y).double().mean())

    for member in range(3):
        value = {on: accuracy(member, on) for on in itertools.product((0.0, 1.0), repeat=3)}
        for slot in range(3):
            without = tuple(0.0 if s == slot else 1.0 for s in range(3))
            expected = value[1.0, 1.0, 1.0] - value[without]
            assert found.contribution_ES[member, slot] == pytest.approx(expected, abs=1e-6)
        total = value[1.0, 1.0, 1.0] - value[0.0, 0.0, 0.0]
        assert found.shapley_ES[member].sum() == pytest.approx(total, abs=1e-6)
    assert found.coalitions_E.tolist() == [8, 8, 8]
    assert diary.records[-1].rows == 3 * 8


def test_a_stride_measures_now_and_then_and_remembers():
    diary = Diary()
    config = CounterfactualConfig(stride=3)
    engine = small_engine(small_task(episode_length=6), diary, members=2, counterfactuals=config)
    engine.run_rollout(StaticTopology({"r0c1": "conv_heavy"}))
    gaps = [record.counterfactuals.gap_E[0] for record in diary.records]
    none, stride = CounterfactualGap.NONE, CounterfactualGap.STRIDE
    assert gaps == [none, stride, stride, none, stride, stride]
    ages = [record.signals.contribution_age_ES[0, 1] for record in diary.records]
    assert ages == [0, 1, 2, 0, 1, 2]
    assert all(record.signals.contribution_age_ES[0, 0] == -1 for record in diary.records)
    velocity = diary.records[3].signals.contribution_velocity_ES[0, 1]
    first, second = (diary.records[t].counterfactuals.contribution_ES[0, 1] for t in (0, 3))
    assert velocity == pytest.approx((second - first) / 3, abs=1e-6)


# ---- faults -------------------------------------------------------------------------------------

STEPS = 8
BROKEN = 1


def poison_weights(engine) -> None:
    engine.env.model.network.host.flat_EP.detach()[BROKEN, 3] = float("nan")


def poison_gradients(engine) -> None:
    """The next backward pass sends a NaN into one weight of one member's host."""
    spoil_next_gradient(engine.env.model, BROKEN, 0, float("nan"))


class PoisonedData:
    """The iterator, with NaN in one member's first batch of a step."""

    def __init__(self, batches) -> None:
        self.batches = batches

    def __getattr__(self, name):
        return getattr(self.batches, name)

    def step(self, step, out=None):
        for x, y in self.batches.step(step, out):
            x = x.clone()
            x[BROKEN] = float("nan")
            yield x, y


def poison_data(engine) -> None:
    engine.trainer.batches = PoisonedData(engine.trainer.batches)


def cure_data(engine) -> None:
    if isinstance(engine.trainer.batches, PoisonedData):
        engine.trainer.batches = engine.trainer.batches.batches


FAULTS = {"weights": poison_weights, "gradients": poison_gradients, "data": poison_data}


def run(executor: str, fault: str | None, at: int, seed: int = 0):
    """An episode with random growth; the fault strikes before step `at` trains."""
    spec = small_task(episode_length=STEPS)
    diary = Diary()

    def strike(record) -> None:
        cure_data(engine)
        if fault is not None and record.signals.step == at - 1:
            FAULTS[fault](engine)

    diary.watch = strike
    engine = small_engine(spec, diary, executor=executor, governor=CALM, seed=seed)
    if fault is not None and at == 0:
        begin = engine.begin_episode

        def begin_poisoned(client):
            begin(client)
            FAULTS[fault](engine)

        engine.begin_episode = begin_poisoned
    rollout = engine.run_rollout(random_policy(seed, spec))
    return engine, rollout, diary


@pytest.fixture(scope="module")
def healthy():
    return {executor: run(executor, None, 0) for executor in ("vmap", "loop")}


@pytest.mark.parametrize(
    ("executor", "fault", "at"), [("vmap", "weights", 0), ("loop", "gradients", STEPS - 1)]
)
def test_a_broken_member_is_set_back_at_that_step_and_no_one_else_notices(
    executor, fault, at, healthy
):
    engine, rollout, diary = run(executor, fault, at)
    whole, _, undisturbed = healthy[executor]
    others = [e for e in range(engine.env.members) if e != BROKEN]
    for name, values in histories(engine.episode).items():
        expected = histories(whole.episode)[name]
        if executor == "loop":
            assert np.array_equal(values[:, others], expected[:, others], equal_nan=True), name
        else:
            np.testing.assert_allclose(values[:, others], expected[:, others], atol=1e-5)
    back = [record.governor.rolled_back_E[BROKEN] for record in diary.records]
    assert back[at], "at that very step"
    assert not any(back[:at])
    assert not any(record.governor.rolled_back_E[others].any() for record in diary.records)
    struck = diary.records[at]
    assert struck.reward_inputs.terminal[BROKEN]
    snapshot = struck.reward_inputs.snapshot_score_E[BROKEN]
    paid = snapshot - struck.reward_inputs.score_before_E[BROKEN] - PENALTY
    assert struck.rewards.total[BROKEN] == pytest.approx(paid, abs=1e-12)
    if struck.decision.actions.op[BROKEN] != LifecycleOp.WAIT:
        assert struck.result.outcome.veto[BROKEN] == VetoReason.GOVERNOR
    if at + 1 < STEPS:
        assert diary.records[at + 1].reward_inputs.score_before_E[BROKEN] == snapshot
    assert rollout.outcome.rollbacks_E[BROKEN] == sum(back)
    assert np.isfinite(rollout.outcome.score_E).all()
    assert torch.isfinite(engine.env.model.network.host.flat_EP).all()
    assert len(undisturbed.records) == STEPS


def test_the_sum_of_rewards_bridges_no_rollback():
    """Over the episode: changes of score, the ways back, penalties and upkeep add up."""
    engine, rollout, diary = run("loop", "gradients", 4)
    parts = {"score": 0.0, "upkeep": 0.0, "rollback": 0.0}
    for record in diary.records:
        for name in parts:
            parts[name] += record.rewards.part(name)[BROKEN]
    first, final = engine.episode.score_TE[0, BROKEN], engine.episode.score_TE[-1, BROKEN]
    assert parts["score"] == pytest.approx(final - first, abs=1e-12)
    assert parts["rollback"] == -PENALTY
    assert rollout.outcome.episode_return_E[BROKEN] == pytest.approx(sum(parts.values()), abs=1e-12)


class GrowThenWait(WaitPolicy):
    """One seed in slot 0 of every member, advanced and made permanent as soon as it is legal."""

    def act(self, obs, masks, policy_state):
        actions = ActionSpec.wait(len(masks.op_EO))
        op = actions.of(ActionHead.OP).copy()
        for choice in (LifecycleOp.GERMINATE, LifecycleOp.ADVANCE, LifecycleOp.FOSSILIZE):
            op[masks.slot_EOS[:, choice, 0]] = choice
        kind = np.full_like(op, obs.slots.blueprints.index("conv_light"))
        chosen = dataclasses.replace(actions, op=op, blueprint=kind)
        return PolicyDecision.deterministic(chosen), policy_state


def test_a_live_seed_is_uprooted_and_the_policy_and_its_history_start_over():
    diary, steps = Diary(), 6
    spec = small_task(episode_length=steps)

    def strike(record) -> None:
        if record.signals.step == 3:
            poison_gradients(engine)

    diary.watch = strike
    engine = small_engine(spec, diary, governor=CALM)
    engine.run_rollout(GrowThenWait(ScoreReward()))
    assert diary.records[3].signals.slots.stage_ES[BROKEN, 0] == SeedStage.TRAINING
    after = diary.records[4]
    assert after.governor.rolled_back_E.tolist() == [False, True, False, False]
    assert after.governor.panic_E[BROKEN] == PanicKind.NON_FINITE_LOSS
    assert after.signals.slots.stage_ES[BROKEN, 0] == SeedStage.PRUNED
    assert after.signals.slots.stage_ES[0, 0] != SeedStage.PRUNED
    pruned = [p for _, step, p in diary.slot_events if isinstance(p, SeedPruned) and step == 4]
    assert pruned[0].member_N.tolist() == [BROKEN]
    assert pruned[0].cause_N.tolist() == [PruneCause.ROLLBACK]
    fresh = diary.records[5].signals
    assert np.isnan(fresh.val_loss_history_EL[BROKEN, :-1]).all(), "its history starts over"
    assert np.isfinite(fresh.val_loss_history_EL[0]).all()
    assert fresh.rollbacks_E.tolist() == [0, 1, 0, 0]
