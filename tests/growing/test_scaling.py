"""Numbers before and after a network: are probabilities calibrated on held-out samples?"""

from __future__ import annotations

import torch
from torch import nn

from esper.growing.data.parts import GrowPart
from esper.growing.scaling import FACTORS, calibrated


def held_out(samples, sure):
    """Logits as inputs, and labels drawn by probabilities that are `sure` times as sharp."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(samples, 3, generator=generator)
    labels = torch.multinomial((sure * logits).softmax(1), 1, generator=generator)[:, 0]
    return GrowPart(logits, labels, None)


def test_logits_are_scaled_to_be_as_sure_as_they_are_right():
    for sure in (0.5, 2.0):
        factor = calibrated(nn.Identity(), held_out(4_000, sure), classes=3).scale.item()
        assert abs(factor - sure) < 0.1 * sure


def test_a_few_right_answers_do_not_make_a_network_sure():
    logits = 3.0 * torch.eye(3).repeat(4, 1)
    few = GrowPart(logits, torch.arange(3).repeat(4), None)
    assert calibrated(nn.Identity(), few, classes=3).scale.item() < 1.5
    many = GrowPart(logits.repeat(200, 1), few.targets.repeat(200), None)
    assert 1.5 < calibrated(nn.Identity(), many, classes=3).scale.item() <= FACTORS[1]
