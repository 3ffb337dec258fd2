"""Gates between stages, as array conditions.

Permissive gates, the default, check safety only; strict gates also check quality. The shadow loss
is that of the network with the seed switched on in full. A missing measurement (NaN) keeps a gate
closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from esper.leyline.arrays import Bools, Codes, Doubles, Floats, Ints
from esper.leyline.errors import EsperError
from esper.leyline.signals import GateSignals
from esper.leyline.stages import SeedStage


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Conditions of the gates."""

    mode: Literal["permissive", "strict"] = "permissive"
    """`permissive` checks safety only, `strict` also quality."""
    min_training_steps: int = 3
    """G2: minimum number of training steps."""
    min_gradient: float = 1e-10
    """G2: a gradient norm at or below this counts as dead."""
    shadow_tolerance: float = 0.5
    """G2, permissive: maximum excess of the shadow loss over the host's."""
    strict_shadow_tolerance: float = 0.0
    """G2, strict: the same, for a seed that must already help."""
    strict_contribution: float = 0.005
    """G5, strict: minimum contribution (accuracy, 0..1)."""

    def __post_init__(self) -> None:
        if self.mode not in ("permissive", "strict"):
            raise EsperError(f"gate mode {self.mode!r}: choose permissive or strict")
        if self.min_training_steps < 1:
            raise EsperError(f"min_training_steps={self.min_training_steps}: must be 1 or more")


def gate_signals(
    stage_ES: Codes,
    trains_ES: Bools,
    host_loss_E: Floats | Doubles,
    shadow_loss_ES: Floats | Doubles,
    grad_norm_ES: Floats | Doubles,
    contribution_ES: Floats,
    contribution_se_ES: Floats,
) -> GateSignals:
    """Build the gate signals from the means over a step's batches and the stages of that step.

    `trains_ES`: seeds that have a gradient (not those ramping down before removal). Expected but
    non-finite losses and gradients become +inf; values that do not apply are NaN.
    """

    def measured(values: Floats | Doubles, applies: Bools | bool) -> Floats:
        sound = np.where(np.isfinite(values), values, np.inf)
        return np.where(applies, sound, np.nan).astype(np.float32)

    return GateSignals(
        host_loss_E=measured(host_loss_E, True),
        shadow_loss_ES=measured(shadow_loss_ES, stage_ES == SeedStage.TRAINING),
        grad_norm_ES=measured(grad_norm_ES, trains_ES),
        contribution_ES=contribution_ES,
        contribution_se_ES=contribution_se_ES,
    )


def ready_to_blend(config: GateConfig, steps_in_stage: Ints, signals: GateSignals) -> Bools:
    """G2: enough training steps, finite non-zero gradients, shadow loss close to the host's."""
    strict = config.mode == "strict"
    tolerance = config.strict_shadow_tolerance if strict else config.shadow_tolerance
    grad = signals.grad_norm_ES
    alive = np.isfinite(grad) & (grad > config.min_gradient)
    shadow = signals.shadow_loss_ES
    with np.errstate(invalid="ignore"):
        near = np.isfinite(shadow) & (shadow <= signals.host_loss_E[:, None] + tolerance)
    return np.asarray((steps_in_stage >= config.min_training_steps) & alive & near)


def fully_blended(alpha: Floats) -> Bools:
    """G3: alpha is exactly 1."""
    return np.asarray(alpha == 1.0)


def worth_keeping(config: GateConfig, signals: GateSignals) -> Bools:
    """G5: the contribution was measured and exceeds its standard error."""
    with np.errstate(invalid="ignore"):
        open_ = signals.contribution_ES > signals.contribution_se_ES
        if config.mode == "strict":
            open_ &= signals.contribution_ES > config.strict_contribution
    return np.asarray(open_)
