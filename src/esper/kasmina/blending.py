"""How a seed's delta enters the host: the three blend operators and the gate.

    ADD       h + a * d
    MULTIPLY  h * (1 + a * tanh(d))
    GATE      h + a * g(h) * d

All three keep the identity path: at a = 0 the host passes through untouched, and at any a the
host's gradient does too.
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
        self.channels_first = topology == "cnn"

    def forward(self, h: Tensor) -> Tensor:
        shape = (-1, *([1] * (h.ndim - 2))) if self.channels_first else (-1,)
        return torch.sigmoid(self.weight.view(shape) * h + self.bias.view(shape))


def update_of(style: BlendStyle, h: Tensor, delta: Tensor, gate: Tensor | None) -> Tensor:
    """What one operator adds to h at full strength; `gate` is g(h), which GATE needs."""
    if style is BlendStyle.MULTIPLY:
        return h * torch.tanh(delta)
    if style is BlendStyle.GATE:
        assert gate is not None, "a seed with style GATE has its gate from birth"
        return gate * delta
    return delta


def blend(
    h: Tensor, delta: Tensor, alpha: Tensor | float, style: BlendStyle, gate: Tensor | None
) -> Tensor:
    """h with the seed blended in at strength alpha."""
    return h + alpha * update_of(style, h, delta, gate)


def update_rows(
    h_G: Tensor,
    delta_G: Tensor,
    style_G: Tensor,
    gate_G: Tensor | None,
    present: frozenset[BlendStyle],
) -> Tensor:
    """What stacked rows add to h at full strength, each by its own operator; `style_G` broadcasts.

    `present` says which operators occur: nothing is computed for the others. What a row's own
    operator does not use is selected away, never multiplied by 0.
    """
    first, *others = sorted(present)
    update = update_of(first, h_G, delta_G, gate_G)
    for style in others:
        update = torch.where(style_G == int(style), update_of(style, h_G, delta_G, gate_G), update)
    return update
