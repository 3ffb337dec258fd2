"""Settings of an optimiser, and how learning rates fall."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from esper.leyline.errors import EsperError

Schedule = Literal["constant", "cosine"]


def schedule_share(schedule: Schedule, step: int, steps: int) -> float:
    """Share of the first learning rate that a step has, counted from 0 of `steps`.

    >>> schedule_share("cosine", 5, 10), schedule_share("constant", 5, 10)
    (0.5, 1.0)
    """
    return 0.5 * (1.0 + math.cos(math.pi * step / steps)) if schedule == "cosine" else 1.0


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """Optimiser settings."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """Optimiser."""
    momentum: float = 0.9
    """SGD momentum."""
    nesterov: bool = False
    """SGD: use Nesterov momentum."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW: decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW: added to the denominator."""
    weight_decay: float = 0.0
    """SGD: added to the gradient; AdamW: decoupled."""
    clip_norm: float | None = 1.0
    """Largest gradient norm of one member's host, and of one seed; None: no clipping."""

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "adamw"):
            raise EsperError(f"optimiser {self.kind!r}: choose sgd or adamw")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise EsperError(
                f"clip_norm={self.clip_norm}: must be above 0, or None for no clipping"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise EsperError(f"betas={self.betas}: both must be from 0 to below 1")
        if self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise EsperError(
                f"weight_decay={self.weight_decay} must be 0 or more, "
                f"momentum={self.momentum} in 0..1"
            )
