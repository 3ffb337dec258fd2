"""Signals: nothing measured is NaN, reports read the arrays, and populations do not mix."""

from dataclasses import fields

import numpy as np
import pytest

from esper.leyline import (
    ActionExecutionResult,
    BlendStyle,
    EsperError,
    GateSignals,
    SeedStage,
    SlotReports,
    TrainingSignals,
)
from esper.leyline.execution import BootstrapTargets
from esper.leyline.signals import NO_BLUEPRINT


def test_unmeasured_signals_are_nan_everywhere():
    signals = GateSignals.unmeasured(members=3, slots=2)
    assert signals.sizes() == {"E": 3, "S": 2}
    for field in fields(signals):
        values = getattr(signals, field.name)
        assert values.dtype == np.float32
        assert np.isnan(values).all()


def test_unmeasured_signals_do_not_share_memory():
    signals = GateSignals.unmeasured(2, 2)
    signals.contribution_ES[:] = 1.0
    assert np.isnan(signals.contribution_se_ES).all()


def test_report_reads_one_slot(build):
    slots = build(SlotReports, {"blueprints": ("norm", "conv_light")})
    slots.blueprint_ES[:] = NO_BLUEPRINT
    slots.pruning_ES[:] = False
    counts = ("ramp_steps_left", "steps_in_stage", "age", "cooldown_left", "params", "macs")
    for value, name in enumerate(counts, start=10):
        getattr(slots, f"{name}_ES")[1, 0] = value
    slots.stage_ES[1, 0] = SeedStage.BLENDING
    slots.blueprint_ES[1, 0] = 1
    slots.style_ES[1, 0] = BlendStyle.GATE
    slots.alpha_ES[1, 0], slots.alpha_target_ES[1, 0] = 0.25, 0.5
    slots.contribution_ES[1, 0], slots.contribution_se_ES[1, 0] = 0.125, 0.0625
    report = slots.report(1, 0)
    assert (report.member, report.slot_id, report.stage) == (1, "r0c0", SeedStage.BLENDING)
    assert (report.blueprint, report.style) == ("conv_light", "GATE")
    assert (report.alpha, report.alpha_target) == (0.25, 0.5)
    assert [getattr(report, name) for name in counts] == [10, 11, 12, 13, 14, 15]
    assert (report.contribution, report.contribution_se) == (0.125, 0.0625)
    empty = slots.report(0, 1)
    assert (empty.slot_id, empty.stage, empty.blueprint) == ("r0c1", SeedStage.DORMANT, None)
    assert empty.style is None


def test_progress_ends_at_one(build):
    seen = [
        build(TrainingSignals, {"step": step, "episode_length": 4}).progress for step in range(4)
    ]
    assert seen == [0.25, 0.5, 0.75, 1.0]


def test_signals_and_slots_are_of_one_population(build):
    with pytest.raises(EsperError, match=r"TrainingSignals\.slots: E is 4, but 3"):
        build(TrainingSignals, {"slots": build(SlotReports, E=4)})


def test_execution_result_reports_the_slots_after_the_actions(build):
    result = build(ActionExecutionResult, {"truncated_bootstrap_targets": BootstrapTargets.none()})
    assert result.post_action_slot_reports is result.post_action_signals.slots
    assert result.truncated_bootstrap_targets.member_N.size == 0
