"""Emitters: payloads in closed form, emitted only if recorded, without side effects."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from engine_script import Script
from esper.leyline import (
    ActionHead,
    ActionMasks,
    ActionSpec,
    BatchSummary,
    LayerGradientStats,
    LifecycleOp,
    RewardComponentsTelemetry,
    SeedStage,
    TelemetryConfig,
    TelemetryEvent,
    TelemetryEventType,
    TelemetryLevel,
)
from esper.leyline.actions import NO_SLOT
from esper.leyline.payloads import (
    CheckpointLoaded,
    EpisodeOutcome,
    PhaseTime,
    PPOUpdateMetrics,
    SeedGateEvaluated,
    SeedGerminated,
    StepPhase,
)
from esper.leyline.signals import CounterfactualGap, PanicKind
from esper.nissa import MemorySink, TelemetryHub
from esper.simic.telemetry import emitters
from esper.simic.telemetry.round_totals import MaskStats
from payload_support import build

Kind = TelemetryEventType
OFF, MINIMAL, NORMAL, DEBUG = TelemetryLevel
NAN = math.nan


class Recorder:
    """A hub at a level, and what came out of it."""

    def __init__(self, level: TelemetryLevel = DEBUG, always=()) -> None:
        self.sink = MemorySink()
        self.hub = TelemetryHub([self.sink], level, always=always)

    @property
    def events(self) -> list[TelemetryEvent]:
        self.hub.close()
        return self.sink.events

    @property
    def event(self) -> TelemetryEvent:
        (event,) = self.events
        return event


def place(event: TelemetryEvent) -> tuple:
    return event.type, event.round_index, event.step, event.env_id, event.device


# ---- context and levels -----------------------------------------------------------------------


def test_context_is_added_and_all_else_kept():
    said = TelemetryEvent.of(CheckpointLoaded("runs/a", 3), round_index=3)
    recorder = Recorder()
    emitters.emit_with_env_context(recorder.hub, said, 2, "cuda:0")
    event = recorder.event
    assert place(event) == (Kind.CHECKPOINT_LOADED, 3, None, 2, "cuda:0")
    assert (event.payload, event.wall_time) == (said.payload, said.wall_time)
    assert said.env_id is None


def last_action(hub: TelemetryHub, level: TelemetryLevel) -> None:
    emitters.emit_last_action(
        hub,
        None,
        "cpu",
        np.array([0, 1]),
        np.array([NO_SLOT, 1]),
        np.array([0.5, NAN]),
        np.array([1.5, -1.0]),
        np.ones((2, 6), dtype=bool),
        level,
        veto=np.array([0, 2], dtype=np.int8),
        op_probability=np.full((2, 6), 1 / 6, dtype=np.float32),
        round_index=4,
        step=7,
    )


def batch_completed(hub: TelemetryHub, level: TelemetryLevel) -> None:
    emitters.emit_batch_completed(hub, build(BatchSummary, {"round_index": 4}), level)


def ppo_update(hub: TelemetryHub, level: TelemetryLevel) -> None:
    layers = [build(LayerGradientStats, {"layer": "core"})]
    emitters.emit_ppo_update_event(hub, build(PPOUpdateMetrics), layers, level, round_index=4)


def slot_events(hub: TelemetryHub, level: TelemetryLevel) -> None:
    config = emitters.apply_slot_telemetry(
        emitters.SlotTelemetry(), TelemetryConfig(level), inner_epoch=7, global_epoch=4
    )
    emitters.emit_slot_events(hub, config, "cpu", build(SeedGerminated, N=1))


OWN_LEVEL = [
    (last_action, DEBUG),
    (batch_completed, MINIMAL),
    (ppo_update, NORMAL),
    (slot_events, NORMAL),
]


@pytest.mark.parametrize(("emit", "lowest"), OWN_LEVEL, ids=[e.__name__ for e, _ in OWN_LEVEL])
@pytest.mark.parametrize("level", TelemetryLevel)
def test_an_emitter_skips_below_the_level_it_belongs_to(emit, lowest, level):
    reported, hub_level = Recorder(DEBUG), Recorder(level)
    emit(reported.hub, level)
    emit(hub_level.hub, DEBUG)
    assert len(reported.events) == len(hub_level.events) == (level >= lowest)


def test_layers_of_an_update_come_at_debug_only():
    for level, count in ((NORMAL, 0), (DEBUG, 1)):
        recorder = Recorder()
        ppo_update(recorder.hub, level)
        assert place(recorder.event) == (Kind.PPO_UPDATED, 4, None, None, None)
        assert len(recorder.event.payload.layers) == count
        assert recorder.event.payload.metrics == build(PPOUpdateMetrics)


# ---- steps ------------------------------------------------------------------------------------


def test_step_completed_is_what_was_measured():
    record, recorder = Script(members=5).record(1, 2), Recorder()
    emitters.emit_step_completed(recorder.hub, "cpu", record)
    assert place(recorder.event) == (Kind.STEP_COMPLETED, 1, 2, None, "cpu")
    said = recorder.event.payload
    for name in ("train_loss_E", "val_loss_E", "val_accuracy_E", "params_over_host_E"):
        assert getattr(said, name).tolist() == getattr(record.signals, name).tolist()
    assert said.score_E.tolist() == record.reward_inputs.score_E.tolist()
    assert np.array_equal(said.value_E, record.decision.value_E)
    live = {SeedStage.GERMINATED, SeedStage.TRAINING, SeedStage.BLENDING, SeedStage.HOLDING}
    by_hand = [sum(s in live for s in row) for row in record.signals.slots.stage_ES.tolist()]
    assert said.live_seeds_E.tolist() == by_hand


def test_events_of_a_step_do_not_follow_later_changes_of_the_record():
    record, recorder = Script().record(0, 0), Recorder()
    kept = copy.deepcopy(record)
    emitters.emit_step_completed(recorder.hub, "cpu", record)
    emitters.emit_governor(recorder.hub, "cpu", record)
    emitters.emit_counterfactuals(recorder.hub, "cpu", record)
    record.signals.val_loss_E[:] = 77
    record.reward_inputs.score_E[:] = 77
    record.counterfactuals.shapley_ES[:] = 77
    step, *others = recorder.events
    assert np.array_equal(step.payload.val_loss_E, kept.signals.val_loss_E, equal_nan=True)
    assert np.array_equal(step.payload.score_E, kept.reward_inputs.score_E)
    assert not any(77 in getattr(e.payload, "loss_N", ()) for e in others)
    assert not any(77 in getattr(e.payload, "shapley_N", ()) for e in others)


def test_last_action_of_all_members():
    recorder = Recorder()
    last_action(recorder.hub, DEBUG)
    assert place(recorder.event) == (Kind.LAST_ACTION, 4, 7, None, "cpu")
    said = recorder.event.payload
    assert said.op_E.tolist() == [0, 1]
    assert said.op_E.dtype == said.veto_E.dtype == np.int8
    assert said.target_slot_E.tolist() == [NO_SLOT, 1]
    assert said.veto_E.tolist() == [0, 2]
    assert said.reward_E[0] == 0.5
    assert np.isnan(said.reward_E[1])
    assert said.cumulative_reward_E.tolist() == [1.5, -1.0]
    assert said.op_mask_EO.all()
    assert np.allclose(said.op_probability_EO, 1 / 6)


def test_last_action_of_one_member_is_one_row_with_its_index():
    recorder = Recorder()
    emitters.emit_last_action(
        recorder.hub,
        3,
        "cpu",
        LifecycleOp.PRUNE,
        1,
        0.25,
        0.5,
        np.array([True] * 6),
        DEBUG,
        veto=0,
        op_probability=np.zeros(6, dtype=np.float32),
        round_index=0,
        step=0,
    )
    assert recorder.event.env_id == 3
    assert recorder.event.payload.op_E.tolist() == [LifecycleOp.PRUNE]
    assert recorder.event.payload.op_mask_EO.shape == (1, 6)
    assert recorder.event.payload.cumulative_reward_E.tolist() == [0.5]


def test_counterfactuals_list_the_slots_that_were_switched_off():
    record, recorder = Script(members=9, slots=3).record(1, 1), Recorder()
    found = record.counterfactuals
    emitters.emit_counterfactuals(recorder.hub, "cpu", record)
    rows = [
        (
            e,
            s,
            record.signals.slots.blueprint_ES[e, s],
            found.contribution_ES[e, s],
            found.contribution_se_ES[e, s],
            found.shapley_ES[e, s],
            found.interaction_ES[e, s],
            found.coalitions_E[e],
            found.exact_E[e],
        )
        for e in range(9)
        for s in range(3)
        if found.gap_E[e] == CounterfactualGap.NONE and not np.isnan(found.contribution_ES[e, s])
    ]
    said = recorder.event.payload
    columns = [getattr(said, name).tolist() for name in said.__dataclass_fields__]
    assert 0 < len(rows) < 27
    assert list(zip(*columns, strict=True)) == rows


def test_nothing_measured_is_no_event():
    record = Script().record(0, 0)
    record.counterfactuals.contribution_ES[:] = np.nan
    record.governor.panic_E[:] = PanicKind.NONE
    record.governor.rolled_back_E[:] = False
    recorder = Recorder()
    emitters.emit_counterfactuals(recorder.hub, "cpu", record)
    emitters.emit_governor(recorder.hub, "cpu", record)
    none = np.zeros(0, dtype=np.int64)
    emitters.emit_cf_unavailable(
        recorder.hub, none, "cpu", none.astype(np.int8), round_index=0, step=0
    )
    config = emitters.SlotTelemetry(kinds=emitters.SLOT_EVENTS)
    emitters.emit_slot_events(recorder.hub, config, "cpu", build(SeedGerminated, N=0))
    assert recorder.events == []


def test_unmeasured_members_are_named_with_their_reasons():
    recorder = Recorder()
    reasons = np.array([1, 3], dtype=np.int8)
    emitters.emit_cf_unavailable(
        recorder.hub, np.array([2, 5]), "cpu", reasons, round_index=1, step=2
    )
    emitters.emit_cf_unavailable(
        recorder.hub, 4, "cpu", CounterfactualGap.STRIDE, round_index=1, step=2
    )
    many, one = recorder.events
    assert place(many) == (Kind.COUNTERFACTUAL_UNAVAILABLE, 1, 2, None, "cpu")
    assert (many.payload.member_N.tolist(), many.payload.reason_N.tolist()) == ([2, 5], [1, 3])
    assert (one.env_id, one.payload.member_N.tolist()) == (4, [4])
    assert one.payload.reason_N.tolist() == [CounterfactualGap.STRIDE]


def test_one_reason_may_stand_for_many_members():
    recorder = Recorder()
    stride = CounterfactualGap.STRIDE
    emitters.emit_cf_unavailable(recorder.hub, np.arange(3), "cpu", stride, round_index=0, step=0)
    assert recorder.event.payload.reason_N.tolist() == [stride] * 3


def test_governor_events_name_who_panicked_and_who_was_set_back():
    record, recorder = Script(members=30).record(0, 1), Recorder()
    emitters.emit_governor(recorder.hub, "cpu", record)
    panic, rollback = (event.payload for event in recorder.events)
    found = record.governor
    who = [e for e in range(30) if found.panic_E[e]]
    assert 1 < len(who) < 30
    assert panic.member_N.tolist() == who
    assert panic.kind_N.tolist() == [found.panic_E[e] for e in who]
    assert panic.loss_N.tolist() == [record.signals.val_loss_E[e] for e in who]
    assert panic.limit_N.tolist() == [found.loss_limit_E[e] for e in who]
    assert panic.strikes_N.tolist() == [found.strikes_E[e] for e in who]
    back = [e for e in range(30) if found.rolled_back_E[e]]
    assert 0 < len(back) < len(who)
    assert rollback.member_N.tolist() == back
    assert rollback.kind_N.tolist() == [found.panic_E[e] for e in back]
    assert rollback.snapshot_step_N.tolist() == [found.snapshot_step_E[e] for e in back]
    before = record.reward_inputs.score_before_E
    assert rollback.score_before_N.tolist() == [before[e] for e in back]
    assert rollback.snapshot_score_N.tolist() == [found.snapshot_score_E[e] for e in back]
    assert rollback.seeds_pruned_N.tolist() == [found.seeds_pruned_E[e] for e in back]


def test_slot_events_carry_their_place_and_level_decides_which():
    config = emitters.apply_slot_telemetry(
        emitters.SlotTelemetry(), TelemetryConfig(NORMAL), inner_epoch=5, global_epoch=2
    )
    assert config.kinds == emitters.SLOT_EVENTS - {Kind.SEED_GATE_EVALUATED}
    recorder, payload = Recorder(), build(SeedGerminated, N=2)
    emitters.emit_slot_events(recorder.hub, config, "cpu", payload)
    emitters.emit_slot_events(recorder.hub, config, "cpu", build(SeedGateEvaluated, N=2))
    assert place(recorder.event) == (Kind.SEED_GERMINATED, 2, 5, None, "cpu")
    assert recorder.event.payload is payload
    loud = emitters.apply_slot_telemetry(config, TelemetryConfig(DEBUG), 5, 2)
    assert loud.kinds == emitters.SLOT_EVENTS


# ---- rounds -----------------------------------------------------------------------------------


def test_round_events_carry_the_round_and_what_they_were_given():
    recorder = Recorder()
    outcome, summary = build(EpisodeOutcome), build(BatchSummary, {"round_index": 8})
    spent = [PhaseTime(StepPhase.TRAIN, 1.5), PhaseTime(StepPhase.ACT, 0.5)]
    emitters.emit_episode_outcome(recorder.hub, "cpu", outcome, 8)
    emitters.emit_batch_completed(recorder.hub, summary, MINIMAL)
    emitters.emit_phase_profile(recorder.hub, "cpu", spent, 2.5, 8)
    ended, round_, phases = recorder.events
    assert place(ended) == (Kind.EPISODE_OUTCOME, 8, None, None, "cpu")
    assert place(round_) == (Kind.ROUND_COMPLETED, 8, None, None, None)
    assert place(phases) == (Kind.PHASE_PROFILE, 8, None, None, "cpu")
    assert (ended.payload, round_.payload) == (outcome, summary)
    assert (phases.payload.phases, phases.payload.total_seconds) == (tuple(spent), 2.5)


def test_action_distribution():
    recorder = Recorder()
    chosen, executed, legal = np.arange(6), np.arange(6) // 2, np.arange(6) * 3
    by_stage = np.arange(54).reshape(6, 9)
    emitters.emit_action_distribution(
        recorder.hub,
        chosen,
        executed,
        legal=legal,
        probability=np.linspace(0, 1, 6),
        by_stage=by_stage,
        slot_counts=np.array([4, 0]),
        slot_successes=np.array([3, 0]),
        round_index=3,
    )
    said = recorder.event.payload
    assert place(recorder.event) == (Kind.ACTION_DISTRIBUTION, 3, None, None, None)
    assert said.chosen_O.tolist() == [0, 1, 2, 3, 4, 5]
    assert said.executed_O.tolist() == [0, 0, 1, 1, 2, 2]
    assert said.legal_O.tolist() == [0, 3, 6, 9, 12, 15]
    assert np.allclose(said.probability_O, [0, 0.2, 0.4, 0.6, 0.8, 1])
    assert said.probability_O.dtype == np.float32
    assert said.chosen_OZ.tolist() == by_stage.tolist()
    assert (said.slot_chosen, said.slot_executed) == ((4, 0), (3, 0))


def test_mask_hit_rates_are_shares_and_nan_where_a_head_never_counted():
    recorder, heads = Recorder(), len(ActionHead)
    stats = MaskStats(np.full(heads, 4), np.full(heads, 3.0), np.full(heads, 1))
    stats.steps_A[ActionHead.TEMPO] = 0
    stats.masked_A[ActionHead.TEMPO] = 0
    emitters.emit_mask_hit_rates(recorder.hub, stats, round_index=1)
    said = recorder.event.payload
    never = said.steps_A == 0
    assert never.sum() == 1
    assert np.isnan(said.masked_fraction_A[never]).all()
    assert (said.masked_fraction_A[~never] == 0.75).all()
    assert (said.forced_fraction_A[~never] == 0.25).all()


def test_mask_stats_of_a_step_by_hand():
    """Two members: one waits, one germinates in slot 1."""
    masks: ActionMasks = build(ActionMasks, E=2, S=2, K=4)
    masks.op_EO[0, 1:] = False
    masks.slot_EOS[1, LifecycleOp.GERMINATE, 0] = False
    masks.blueprint_ESK[1, 1, :3] = False
    masks.tempo_M[0] = False
    actions = ActionSpec.wait(2)
    actions.op[:] = LifecycleOp.WAIT, LifecycleOp.GERMINATE
    actions.slot[:] = 99, 1
    stats = MaskStats.of(masks, actions, restarts=True)
    head = ActionHead
    #                               op slot blueprint style tempo target speed curve
    assert stats.steps_A.tolist() == [2, 1, 1, 1, 1, 1, 0, 1]
    assert stats.forced_A.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert stats.masked_A[head.OP] == pytest.approx(9 / 10)
    assert stats.masked_A[head.SLOT] == pytest.approx(1 / 2)
    assert stats.masked_A[head.BLUEPRINT] == pytest.approx(3 / 4)
    assert stats.masked_A[head.TEMPO] == pytest.approx(1 / 3)
    assert stats.masked_A[head.ALPHA_SPEED] == stats.masked_A[head.STYLE] == 0


def test_reward_summary_has_members_as_rows():
    recorder = Recorder()
    parts = {"score": np.array([1.0, 2.0, NAN]), "upkeep": np.array([-0.5, 0.0, 1.0])}
    paid = RewardComponentsTelemetry.of(parts, 3)
    slots = np.array([0.25, -1.0])
    emitters.emit_reward_summary(
        recorder.hub, None, "cpu", paid, paid.total, slot_reward=slots, round_index=2
    )
    paid.value_PE[:] = 77
    said = recorder.event.payload
    assert said.parts == ("score", "upkeep")
    assert said.value_EP[:2].tolist() == [[1.0, -0.5], [2.0, 0.0]]
    assert said.total_E[:2].tolist() == [0.5, 2.0]
    assert np.isnan(said.total_E[2])
    assert said.slot_reward == (0.25, -1.0)


def test_throughput_puts_every_figure_in_its_field():
    recorder = Recorder()
    emitters.emit_throughput(
        recorder.hub,
        None,
        "cpu",
        1.0,
        2.0,
        0.5,
        member_steps_per_second=3.0,
        episodes_per_second=4.0,
        rows_per_member=5.0,
        step_seconds_p50=6.0,
        step_seconds_p95=7.0,
        device_share=0.8,
        gpu_memory=9.0,
        round_index=9,
    )
    said = recorder.event.payload
    assert place(recorder.event) == (Kind.THROUGHPUT, 9, None, None, "cpu")
    assert (said.batches_per_second, said.samples_per_second, said.gpu_utilization) == (1, 2, 0.5)
    assert (said.member_steps_per_second, said.episodes_per_second) == (3, 4)
    assert (said.device_share, said.gpu_memory) == (0.8, 9)
    assert (said.rows_per_member, said.step_seconds_p50, said.step_seconds_p95) == (5, 6, 7)


# ---- gradients and accuracy -------------------------------------------------------------------


def test_gradient_norm_is_that_of_all_gradients_in_one_vector():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module(torch.randn(5, 3)).sum().backward()
    module[1].bias.grad = None
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    kept = [g.clone() for g in grads]
    whole = torch.cat([g.flatten() for g in grads]).norm().item()
    assert emitters.compute_grad_norm_surrogate(module) == pytest.approx(whole)
    assert emitters.compute_grad_norm_surrogate([None, *grads]) == pytest.approx(whole)
    assert all(torch.equal(a, b) for a, b in zip(grads, kept, strict=True))


def test_gradient_norm_of_nothing_is_0_and_of_the_broken_is_not_finite():
    assert emitters.compute_grad_norm_surrogate(nn.Linear(2, 2)) == 0.0
    assert emitters.compute_grad_norm_surrogate([]) == 0.0
    assert math.isnan(emitters.compute_grad_norm_surrogate([torch.tensor([NAN, 1.0])]))
    assert emitters.compute_grad_norm_surrogate([torch.tensor([math.inf])]) == math.inf


def test_gradient_norm_does_not_overflow():
    huge = torch.full((4,), 1e30)
    assert emitters.compute_grad_norm_surrogate([huge]) == pytest.approx(2e30, rel=1e-6)
    assert emitters.compute_grad_norm_surrogate([huge[:1].bfloat16()]) == pytest.approx(1e30, 0.01)


def layer(**values: float) -> LayerGradientStats:
    return build(LayerGradientStats, {"layer": "a", **values})


def test_layer_health_counts_the_ill_ones():
    stats = [
        layer(grad_norm=1.0),
        layer(zero_fraction=0.95, large_fraction=0.5),
        layer(large_fraction=0.11),
        layer(zero_fraction=0.9, large_fraction=0.1),
    ]
    assert emitters.aggregate_layer_gradient_health(stats) == {
        "layers": 4,
        "dead_layers": 1,
        "exploding_layers": 2,
    }


@pytest.mark.parametrize(
    ("current", "baseline", "threshold", "degraded"),
    [
        (0.75, 0.875, 0.05, True),
        (0.875, 0.75, 0.05, False),
        (0.75, 0.875, 0.125, False),
        (0.75, 0.875, 0.12, True),
        (NAN, 0.875, 0.05, False),
        (0.75, NAN, 0.05, False),
    ],
)
def test_degradation_is_a_fall_by_more_than_the_threshold(current, baseline, threshold, degraded):
    found, delta = emitters.check_performance_degradation(current, baseline, threshold)
    assert found is degraded
    assert delta == pytest.approx(current - baseline, nan_ok=True)


def test_degradation_threshold_is_five_points_unless_said_otherwise():
    assert emitters.check_performance_degradation(0.8, 0.86)[0]
    assert not emitters.check_performance_degradation(0.8, 0.84)[0]
