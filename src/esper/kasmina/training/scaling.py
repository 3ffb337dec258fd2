"""Loss scaling for fp16, with one scale per member.

The rule is that of `torch.amp.GradScaler`, per row. A single scaler would skip the step of all
members because of one member's overflow.

Shape letters: E members, R rows.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

INIT_SCALE: Final = 2.0**16
GROWTH: Final = 2.0
"""Factor after `GROWTH_INTERVAL` finite batches in a row."""
GROWTH_INTERVAL: Final = 2000
BACKOFF: Final = 0.5
"""Factor after a batch with non-finite gradients."""


class MemberScaler:
    """Loss scales of all members, on the device; never synchronises."""

    def __init__(
        self, members: int, device: torch.device, growth_interval: int = GROWTH_INTERVAL
    ) -> None:
        self._interval = growth_interval
        self.scale_E = torch.empty(members, dtype=torch.float32, device=device)
        self.good_E = torch.empty(members, dtype=torch.int32, device=device)
        """Finite batches since the scale last changed."""
        self.reset()

    def reset(self) -> None:
        """Reset to the initial scales."""
        self.scale_E.fill_(INIT_SCALE)
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
        good_E = torch.where(overflow_E, 0, self.good_E + 1)
        due_E = good_E >= self._interval
        grown_E = torch.where(due_E, self.scale_E * GROWTH, self.scale_E)
        grown_E = torch.where(torch.isfinite(grown_E), grown_E, self.scale_E)
        lower_E = self.scale_E * BACKOFF
        scale_E, good_E = torch.where(overflow_E, lower_E, grown_E), torch.where(due_E, 0, good_E)
        if active_E is not None:
            scale_E = torch.where(active_E, scale_E, self.scale_E)
            good_E = torch.where(active_E, good_E, self.good_E)
        self.scale_E.copy_(scale_E)
        self.good_E.copy_(good_E)
