"""What carrying out the actions of a step left behind: the answer of `execute_actions`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import ActionOutcome
from esper.leyline.arrays import ArrayStruct, Ints
from esper.leyline.masks import ActionMasks
from esper.leyline.signals import SlotReports, TrainingSignals


@dataclass(frozen=True, slots=True, eq=False)
class BootstrapTargets(ArrayStruct):
    """The N places of a rollout whose return goes on beyond it and is estimated by the value."""

    member_N: Ints
    step_N: Ints
    """Step of the rollout (0 .. T-1) after which the member's episode was cut, not ended."""

    @classmethod
    def none(cls) -> BootstrapTargets:
        """Nothing was cut."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class ActionExecutionResult(ArrayStruct):
    """The outcome of every member's action, and the state it led to."""

    outcome: ActionOutcome
    truncated_bootstrap_targets: BootstrapTargets
    post_action_signals: TrainingSignals
    """This step's measurements with the slots as they stand after the actions."""
    post_action_masks: ActionMasks
    """What would be legal now; with the signals, what a value estimate of a cut needs."""

    @property
    def post_action_slot_reports(self) -> SlotReports:
        """The slots as they stand after the actions."""
        return self.post_action_signals.slots
