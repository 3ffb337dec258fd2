"""bfloat16 passes leave the rest of the process as it was, on any CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.device.bfloat16 import bfloat16_passes


def in_float32() -> list[Tensor]:
    """Outputs and gradients of layers that oneDNN computes, if it is on."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Flatten(), nn.Linear(1152, 64))
    out = layers(torch.randn(5, 4, 12, 12))
    out.square().sum().backward()
    return [out, *(parameter.grad for parameter in layers.parameters())]


def in_bfloat16() -> None:
    """Products in both passes, large enough for oneDNN."""
    layer = nn.Linear(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(64, 64, requires_grad=True))
    out.float().sum().backward()


def test_float32_results_are_bit_for_bit_those_of_before():
    before = in_float32()
    with bfloat16_passes("cpu"):
        in_bfloat16()
    for one, other in zip(before, in_float32(), strict=True):
        assert torch.equal(one, other)


def test_results_are_kept_when_a_pass_fails():
    before = in_float32()
    with pytest.raises(RuntimeError, match="shapes"), bfloat16_passes("cpu"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    for one, other in zip(before, in_float32(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("given", [("cuda",), ("cpu", False)])
def test_elsewhere_and_without_it_nothing_is_switched(given):
    before = torch.backends.mkldnn.enabled
    with bfloat16_passes(*given):
        assert torch.backends.mkldnn.enabled == before
