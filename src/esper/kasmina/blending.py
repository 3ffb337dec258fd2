"""How a seed's delta enters the host: the three blend operators and the gate.

    ADD       h + a * d
    MULTIPLY  h * (1 + a * tanh(d))
    GATE      h + a * g(h) * d

All three keep the identity path: at a = 0 the host passes through untouched, and at any a the
host's gradient does too. The functions work on one row, or on stacked rows with row-wise `alpha`
and `style` shaped to broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.leyline.actions import BlendStyle
from esper.leyline.slots import Topology

OPEN_GATE = 2.0
"""Bias of a new gate: sigmoid(2) = 0.88, open but able to move."""


class Gate(nn.Module):
    """g(h): one learnt sigmoid per channel, at every position."""

    def __init__(self, width: int, topology: Topology) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.full((width,), OPEN_GATE))
        self._channels_first = topology == "cnn"

    def forward(self, h: Tensor) -> Tensor:
        shape = (-1, *([1] * (h.ndim - 2))) if self._channels_first else (-1,)
        return torch.sigmoid(self.weight.view(shape) * h + self.bias.view(shape))


def blend(
    h: Tensor,
    delta: Tensor,
    alpha: Tensor,
    style: Tensor,
    gate: Tensor | None,
    present: frozenset[BlendStyle],
) -> Tensor:
    """Blend stacked rows, each with its own operator.

    `present` says which operators occur, so that nothing is computed for those that do not; `gate`
    is g(h), needed where GATE occurs. A row's unused operators are selected away, never
    multiplied by 0.
    """
    update = delta
    if BlendStyle.MULTIPLY in present:
        update = torch.where(style == int(BlendStyle.MULTIPLY), h * torch.tanh(delta), update)
    if BlendStyle.GATE in present:
        if gate is None:
            raise AssertionError("blend: GATE is present but no gate was computed")
        update = torch.where(style == int(BlendStyle.GATE), gate * delta, update)
    return h + alpha * update
