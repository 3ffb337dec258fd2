"""How episodes end, and what must not leak into them: last steps, late rollbacks, other hands."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from engine_support import CALM, Diary, histories, random_policy, small_engine, small_task
from esper.leyline import LifecycleOp
from esper.leyline.actions import ActionHead, ActionSpec, VetoReason
from esper.leyline.payloads import SeedPruned
from esper.leyline.records import PolicyDecision
from esper.simic.rewards.score import ScoreReward
from esper.tamiyo.baselines import StaticTopology, WaitPolicy
from esper.tolaria.engine import VectorizedEngine
from esper.tolaria.engine_config import EngineConfig
from support import refused

SPEC = small_task(episode_length=8)


class PrunesAtTheEnd(WaitPolicy):
    """Grows one seed, and asks for its removal at the last step, whatever the masks say."""

    def act(self, obs, masks, policy_state):
        actions = ActionSpec.wait(len(masks.op_EO))
        op, kind = actions.op.copy(), actions.blueprint.copy()
        kind[:] = obs.slots.blueprints.index("conv_heavy")
        for choice in (LifecycleOp.GERMINATE, LifecycleOp.ADVANCE):
            op[masks.slot_EOS[:, choice, 0]] = choice
        if obs.step == obs.episode_length - 1:
            self.last_masks = masks
            op[:] = LifecycleOp.PRUNE
        actions = dataclasses.replace(actions, op=op, blueprint=kind)
        return PolicyDecision.deterministic(actions), policy_state


def test_the_last_step_changes_nothing():
    """What is tested and exported is what was scored."""
    spec = small_task(episode_length=14)
    diary, policy = Diary(), PrunesAtTheEnd()
    engine = small_engine(spec, diary, members=2)
    outcome = engine.run_rollout(policy).outcome
    assert not policy.last_masks.op_EO[:, 1:].any(), "only waiting is offered"
    veto = diary.records[-1].result.outcome.veto
    assert [VetoReason(v) for v in veto] == [VetoReason.EPISODE_OVER] * 2
    assert (outcome.added_params_E > 0).all()
    host = engine.env.model.network.host.parameters_per_member
    assert np.array_equal(engine.env.model.parameters_E() - host, outcome.added_params_E)
    data = spec.load()
    with torch.no_grad():
        logits = engine.env.model.forward(torch.from_numpy(data.normalised(data.val_score))[None])
    right = (logits.argmax(-1) == torch.from_numpy(data.val_score.labels)).double().mean(dim=1)
    np.testing.assert_allclose(outcome.accuracy_E, right, atol=1e-12)


def test_a_rollback_at_the_last_step_is_the_outcome():
    """Return, score and the member as it stands tell the same."""
    diary = Diary()

    def strike(record) -> None:
        if record.signals.step == 6:
            engine.env.model.network.host.flat_EP.detach()[1, 3] = float("nan")

    diary.watch = strike
    engine = small_engine(SPEC, diary, governor=CALM)
    outcome = engine.run_rollout(random_policy(0, SPEC)).outcome
    last = diary.records[-1]
    assert last.governor.rolled_back_E.tolist() == [False, True, False, False]
    assert outcome.score_E[1] == last.governor.snapshot_score_E[1]
    parts = sum(r.rewards.part("upkeep") + r.rewards.part("rollback") for r in diary.records)
    np.testing.assert_allclose(
        outcome.episode_return_E, outcome.score_E - engine.episode.score_TE[0] + parts, atol=1e-12
    )
    assert np.isfinite(outcome.loss_E).all()
    host = engine.env.model.network.host.parameters_per_member
    assert np.array_equal(engine.env.model.parameters_E() - host, outcome.added_params_E)


def test_removed_seeds_are_counted_once():
    for seed in range(3):
        diary = Diary()
        engine = small_engine(small_task(episode_length=12), diary, seed=seed)
        outcome = engine.run_rollout(random_policy(seed)).outcome
        reported = np.zeros(4, dtype=np.int64)
        for _, _, payload in diary.slot_events:
            if isinstance(payload, SeedPruned):
                np.add.at(reported, payload.member_N, 1)
        assert np.array_equal(outcome.pruned_E, reported)


class Scribbler(Diary):
    """A listener that writes into everything it is shown."""

    refused = 0

    def on_step(self, record) -> None:
        super().on_step(record)
        for struct in (
            record.signals,
            record.signals.slots,
            record.result.post_action_signals.slots,
        ):
            for field in dataclasses.fields(struct):
                value = getattr(struct, field.name)
                if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                    with pytest.raises(ValueError, match="read-only"):
                        value[:] = 0.9
                    self.refused += 1


def test_records_refuse_what_others_write_into_them():
    scribbler = Scribbler()
    reported, silent = small_engine(SPEC, scribbler, seed=2), small_engine(SPEC, seed=2)
    reported.run_rollout(random_policy(2, SPEC))
    assert scribbler.refused > 10 * SPEC.episode_length
    silent.run_rollout(random_policy(2, SPEC))
    for name, values in histories(reported.episode).items():
        assert np.array_equal(values, histories(silent.episode)[name], equal_nan=True), name


class Interrupted(WaitPolicy):
    """Stops the run once, in the middle."""

    stopped = False

    def act(self, obs, masks, policy_state):
        if obs.step == 3 and not self.stopped:
            self.stopped = True
            raise KeyboardInterrupt
        return super().act(obs, masks, policy_state)


def test_after_an_interrupted_step_the_episode_begins_again():
    engine, clean = small_engine(SPEC), small_engine(SPEC)
    policy = Interrupted(ScoreReward())
    with pytest.raises(KeyboardInterrupt):
        engine.run_rollout(policy)
    again = engine.run_rollout(policy)
    whole = clean.run_rollout(WaitPolicy(ScoreReward()))
    assert again.outcome == whole.outcome
    for name, values in histories(engine.episode).items():
        assert np.array_equal(values, histories(clean.episode)[name], equal_nan=True), name


def test_frozen_heads_are_checked_before_a_run_and_in_it():
    assert "TEMPO" in refused(lambda: small_engine(SPEC, frozen_heads=((ActionHead.TEMPO, 9),)))
    engine = small_engine(SPEC, frozen_heads=((ActionHead.BLUEPRINT, 0),))

    class Stubborn(WaitPolicy):
        def act(self, obs, masks, policy_state):
            actions = ActionSpec.wait(len(masks.op_EO))
            actions.op[2], actions.blueprint[2] = LifecycleOp.GERMINATE, 3
            return PolicyDecision.deterministic(actions), policy_state

    line = refused(lambda: engine.run_rollout(Stubborn()))
    assert "action of member 2: blueprint 3, but that head is frozen to 0" in line


def test_a_topology_of_fractions_is_refused():
    class Half(StaticTopology):
        def planted(self, members, slots, blueprints):
            return np.full((members, len(slots)), 0.5)

    engine = small_engine(SPEC)
    assert "planted blueprint" in refused(lambda: engine.run_rollout(Half("norm")))


def test_data_that_are_not_finite_are_named():
    from esper.tasks.registry import get_task_spec
    from esper.tasks.synthetic_data import with_synthetic_data

    spec = with_synthetic_data(get_task_spec("mnist1d"))
    data = spec.load()
    signals = data.val_control.inputs.astype(np.float32).copy()
    signals[3] = np.nan
    others = {name: getattr(data, name) for name in ("train", "val_score", "test")}
    floats = {
        name: dataclasses.replace(other, inputs=other.inputs.astype(np.float32))
        for name, other in others.items()
    }
    part = dataclasses.replace(data.val_control, inputs=signals)
    line = refused(lambda: dataclasses.replace(data, val_control=part, **floats))
    assert f"val_control: 1 of {len(signals)} inputs hold numbers that are not finite" in line
    assert VectorizedEngine(spec, EngineConfig(members=1, device="cpu"), data=data).round == 0
