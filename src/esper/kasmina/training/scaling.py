"""Loss scaling for fp16, with one scale per member.

The rule is that of `torch.amp.GradScaler`, per row. A single scaler would skip the step of all
members because of one member's overflow.

Shape letters: E members, R rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline.errors import EsperError


@dataclass(frozen=True, slots=True)
class ScalerConfig:
    """Settings of a loss scaler."""

    init_scale: float = 2.0**16
    """Initial scale."""
    growth_factor: float = 2.0
    """Factor after `growth_interval` finite batches in a row."""
    backoff_factor: float = 0.5
    """Factor after a batch with non-finite gradients."""
    growth_interval: int = 2000
    """Finite batches in a row before the scale grows."""

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
    """Loss scales of all members, on the device; never synchronises."""

    def __init__(
        self, members: int, device: torch.device, config: ScalerConfig | None = None
    ) -> None:
        self.config = config or ScalerConfig()
        self.scale_E = torch.empty(members, dtype=torch.float32, device=device)
        self.good_E = torch.empty(members, dtype=torch.int32, device=device)
        """Finite batches since the scale last changed."""
        self.reset()

    def reset(self) -> None:
        """Reset to the initial scales."""
        self.scale_E.fill_(self.config.init_scale)
        self.good_E.zero_()

    def scales(self, member_R: Tensor | None) -> Tensor:
        """Return `[R]` the scale of each row's member (None: row e is member e)."""
        return self.scale_E if member_R is None else self.scale_E.index_select(0, member_R)

    def unscale_(self, grad_EP: Tensor) -> None:
        """Divide a gradient by the scale, in place."""
        grad_EP.div_(self.scale_E[:, None])

    def recoverable(self, overflow_E: Tensor) -> Tensor:
        """Return overflows that a lower scale may avoid, which do not indicate a bad member."""
        return overflow_E & (self.scale_E > 1.0)

    def update(self, overflow_E: Tensor, active_E: Tensor | None = None) -> None:
        """Update the scales after a batch, of the active members (None: all)."""
        config = self.config
        good_E = torch.where(overflow_E, 0, self.good_E + 1)
        due_E = good_E >= config.growth_interval
        grown_E = torch.where(due_E, self.scale_E * config.growth_factor, self.scale_E)
        grown_E = torch.where(torch.isfinite(grown_E), grown_E, self.scale_E)
        lower_E = self.scale_E * config.backoff_factor
        scale_E, good_E = torch.where(overflow_E, lower_E, grown_E), torch.where(due_E, 0, good_E)
        if active_E is not None:
            scale_E = torch.where(active_E, scale_E, self.scale_E)
            good_E = torch.where(active_E, good_E, self.good_E)
        self.scale_E.copy_(scale_E)
        self.good_E.copy_(good_E)
