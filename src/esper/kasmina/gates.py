"""When a seed may move on: the gates as array conditions.

Permissive gates (the default under a learned controller) check safety only; strict gates check
quality too. A signal that was not measured (NaN) keeps a gate closed.
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
    """What the gates ask for."""

    mode: Literal["permissive", "strict"] = "permissive"
    """`permissive` checks safety only, `strict` quality too."""
    min_training_steps: int = 3
    """G2: steps a seed incubates at least."""
    min_gradient: float = 1e-10
    """G2: a gradient norm at or below this is a dead seed."""
    shadow_tolerance: float = 0.5
    """G2, permissive: how far the shadow loss may stand above the host's."""
    strict_shadow_tolerance: float = 0.0
    """G2, strict: the same, for a seed that must already help."""
    strict_contribution: float = 0.005
    """G5, strict: the least contribution (accuracy, 0..1) worth keeping."""

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
    """What the gates read, from the means over a step's batches and the stages it trained in.

    `trains_ES`: where a seed has a gradient (not where its alpha falls before it is removed).
    A loss or gradient that should be there and is not finite becomes +inf; where there is none to
    measure, NaN.
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
    """G2: incubated long enough, gradients finite and alive, shadow loss near the host's."""
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
    """G5: a contribution was measured and stands above its standard error."""
    with np.errstate(invalid="ignore"):
        open_ = signals.contribution_ES > signals.contribution_se_ES
        if config.mode == "strict":
            open_ &= signals.contribution_ES > config.strict_contribution
    return np.asarray(open_)
