"""How members train in fp16 without underflow: a loss scale of its own for each.

The law is `torch.amp.GradScaler`'s, row by row. One scaler for all would skip everyone's step
because of one member's overflow.

Shape letters: E members, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline.errors import EsperError


@dataclass(frozen=True, slots=True)
class ScalerConfig:
    """How the scale moves."""

    init_scale: float = 2.0**16
    """First scale of every member."""
    growth_factor: float = 2.0
    """What the scale is multiplied by after `growth_interval` good batches in a row."""
    backoff_factor: float = 0.5
    """What it is multiplied by after a batch whose gradients were not finite."""
    growth_interval: int = 2000
    """Good batches in a row before it grows."""

    def __post_init__(self) -> None:
        if not (self.init_scale > 0 and self.growth_factor > 1 and 0 < self.backoff_factor < 1):
            raise EsperError(
                f"scaler init_scale={self.init_scale} must be above 0, "
                f"growth_factor={self.growth_factor} above 1, "
                f"backoff_factor={self.backoff_factor} between 0 and 1"
            )
        if self.growth_interval < 1:
            raise EsperError(f"scaler growth_interval={self.growth_interval}: must be 1 or more")


class MemberScaler:
    """The loss scales of all members, on the device; nothing here waits for it."""

    def __init__(
        self, members: int, device: torch.device, config: ScalerConfig | None = None
    ) -> None:
        self.config = config or ScalerConfig()
        self.scale_E = torch.empty(members, dtype=torch.float32, device=device)
        self.good_E = torch.empty(members, dtype=torch.int32, device=device)
        """Good batches since the scale last changed."""
        self.reset()

    def reset(self) -> None:
        """As before the first batch."""
        self.scale_E.fill_(self.config.init_scale)
        self.good_E.zero_()

    def scale(self, loss_R: Tensor, member_R: Tensor | None) -> Tensor:
        """Losses times the scale of their member (`member_R` None: row e is member e)."""
        scale_R = self.scale_E if member_R is None else self.scale_E.index_select(0, member_R)
        return loss_R * scale_R

    def unscale_(self, grad_EP: Tensor) -> None:
        """Take the scale out of a gradient again."""
        grad_EP.div_(self.scale_E[:, None])

    def excused(self, overflow_E: Tensor) -> Tensor:
        """Overflows that a lower scale may cure, and which therefore say nothing of the member."""
        return overflow_E & (self.scale_E > 1.0)

    def update(self, overflow_E: Tensor) -> None:
        """Move the scales after a batch."""
        config = self.config
        good_E = torch.where(overflow_E, 0, self.good_E + 1)
        due_E = good_E >= config.growth_interval
        grown_E = torch.where(due_E, self.scale_E * config.growth_factor, self.scale_E)
        grown_E = torch.where(torch.isfinite(grown_E), grown_E, self.scale_E)
        lower_E = self.scale_E * config.backoff_factor
        self.scale_E.copy_(torch.where(overflow_E, lower_E, grown_E))
        self.good_E.copy_(torch.where(due_E, 0, good_E))
