"""Blend operators that add a seed's delta to the host, and the gate.

    ADD       h + a * d
    MULTIPLY  h * (1 + a * tanh(d))
    GATE      h + a * g(h) * d

All three keep the identity path: at a = 0 the host's activation is unchanged, and the host's
gradient passes at any a.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.kasmina.layers.host_checks import axes_after_channels
from esper.leyline.actions import BlendStyle
from esper.leyline.slots import Topology

OPEN_GATE = 2.0
"""Initial bias of a gate: sigmoid(2) = 0.88, mostly open."""


class Gate(nn.Module):
    """g(h): a learnt sigmoid per channel, at every position."""

    def __init__(self, width: int, topology: Topology) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.full((width,), OPEN_GATE))
        self.shape = (-1, *[1] * axes_after_channels(topology))
        """Shape in which weight and bias broadcast over an activation."""

    def forward(self, h: Tensor) -> Tensor:
        shape = self.shape
        return torch.sigmoid(self.weight.view(shape) * h + self.bias.view(shape))


def _blend_update(style: BlendStyle, h: Tensor, delta: Tensor, gate: Tensor | None) -> Tensor:
    """Return what an operator adds to h at alpha 1; `gate` is g(h), needed for GATE."""
    if style is BlendStyle.MULTIPLY:
        return h * torch.tanh(delta)
    if style is BlendStyle.GATE:
        assert gate is not None, "a seed with style GATE always has a gate"
        return gate * delta
    return delta


def blend(
    h: Tensor, delta: Tensor, alpha: Tensor | float, style: BlendStyle, gate: Tensor | None
) -> Tensor:
    """Return h with the seed blended in with strength alpha."""
    return h + alpha * _blend_update(style, h, delta, gate)


def update_rows(
    h_G: Tensor,
    delta_G: Tensor,
    style_G: Tensor,
    gate_G: Tensor | None,
    present: frozenset[BlendStyle],
) -> Tensor:
    """Return what stacked rows add to h at alpha 1, each with its own operator.

    `style_G` broadcasts. `present`: the operators that occur; others are skipped. Results of other
    operators are selected away, never multiplied by 0 (which would keep NaN).
    """
    first, *others = sorted(present)
    update = _blend_update(first, h_G, delta_G, gate_G)
    for style in others:
        update = torch.where(
            style_G == int(style), _blend_update(style, h_G, delta_G, gate_G), update
        )
    return update
