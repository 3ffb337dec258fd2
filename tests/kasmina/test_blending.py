"""The three operators have their closed form, alone and mixed in one stack."""

from __future__ import annotations

import pytest
import torch

from esper.kasmina.layers.blending import OPEN_GATE, Gate, blend, update_rows
from esper.leyline import BlendStyle

H = torch.tensor([[2.0, -1.0], [0.5, 3.0]])
D = torch.tensor([[0.3, -0.2], [1.0, 0.0]])
G = torch.tensor([[0.9, 0.5], [0.1, 1.0]])


def by_hand(style: BlendStyle, alpha: float) -> torch.Tensor:
    if style is BlendStyle.ADD:
        return H + alpha * D
    if style is BlendStyle.MULTIPLY:
        return H * (1 + alpha * torch.tanh(D))
    return H + alpha * G * D


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("style", list(BlendStyle))
def test_operator_has_its_closed_form(style, alpha):
    torch.testing.assert_close(blend(H, D, alpha, style, G), by_hand(style, alpha))


def test_rows_with_different_operators_do_not_mix():
    """Also when an unused operator of a row would be infinite or not a number."""
    styles = [BlendStyle.GATE, BlendStyle.ADD, BlendStyle.MULTIPLY, BlendStyle.ADD]
    alphas = torch.tensor([0.5, 1.0, 0.3, 0.0])
    h, d, gate = H.expand(4, 2, 2).clone(), D.expand(4, 2, 2).clone(), G.expand(4, 2, 2).clone()
    gate[1] = float("nan")
    h.requires_grad_(True)
    codes = torch.tensor([int(s) for s in styles], dtype=torch.int8)
    update = update_rows(h, d, codes.view(4, 1, 1), gate, frozenset(styles))
    out = h + alphas.view(4, 1, 1) * update
    for row, style in enumerate(styles):
        torch.testing.assert_close(out[row], by_hand(style, alphas[row].item()))
    out.sum().backward()
    assert torch.isfinite(h.grad).all()
    torch.testing.assert_close(h.grad[1], torch.ones(2, 2))


def test_gate_opens_at_birth():
    gate = Gate(3, "cnn")
    value = gate(torch.randn(2, 3, 4, 4))
    torch.testing.assert_close(value, torch.sigmoid(torch.full_like(value, OPEN_GATE)))
    assert Gate(3, "transformer")(torch.randn(2, 5, 3)).shape == (2, 5, 3)
