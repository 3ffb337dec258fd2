"""Result of executing the actions of a step, as returned by `execute_actions`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esper.leyline.actions import ActionOutcome
from esper.leyline.arrays import ArrayStruct, Ints
from esper.leyline.masks import ActionMasks
from esper.leyline.signals import SlotReports, TrainingSignals


@dataclass(frozen=True, slots=True, eq=False)
class BootstrapTargets(ArrayStruct):
    """The N truncated (member, step) pairs whose return is bootstrapped from the value."""

    member_N: Ints
    step_N: Ints
    """Step of the rollout (0 .. T-1) after which the member's episode was truncated."""

    @classmethod
    def none(cls) -> BootstrapTargets:
        """No truncation."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class ActionExecutionResult(ArrayStruct):
    """Outcome of every member's action, and the resulting state."""

    outcome: ActionOutcome
    truncated_bootstrap_targets: BootstrapTargets
    post_action_signals: TrainingSignals
    """This step's measurements with the slots after the actions."""
    post_action_masks: ActionMasks
    """Legal actions after the step; with the signals, the input of a bootstrap value."""

    @property
    def post_action_slot_reports(self) -> SlotReports:
        """Slot reports after the actions."""
        return self.post_action_signals.slots
