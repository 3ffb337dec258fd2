"""`ObservedStep`: a step of the engine up to the point where the policy acts.

Shape letters: E members.
"""

from __future__ import annotations

from dataclasses import dataclass

from esper.leyline.arrays import Doubles
from esper.leyline.masks import ActionMasks
from esper.leyline.payloads import StepPhase
from esper.leyline.signals import Counterfactuals, GovernorVerdicts, TrainingSignals


@dataclass(frozen=True, slots=True, eq=False)
class ObservedStep:
    """A trained, validated and observed step, before its actions."""

    signals: TrainingSignals
    masks: ActionMasks
    verdicts: GovernorVerdicts
    counterfactuals: Counterfactuals
    train_accuracy_E: Doubles
    rows: int
    """Validation rows plus shadow rows of training."""
    phases: dict[StepPhase, float]
    """Host seconds per phase so far; the rest of the step adds to it."""
