"""New rows drawn by one launch are those that torch draws, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from esper.kasmina.layers.initialisation import Initialiser
from esper.kasmina.layers.layers import Conv2d, Linear
from esper.leyline.streams import stream_keys
from kernel_support import DEVICE, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.draws import draw_rows  # noqa: E402

KEYS = stream_keys(3, "member", np.arange(5), "slot", "r0c1")


class Two(nn.Module):
    """Names, constants, biases, more parameters than a program takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Conv2d(8, 16, 3, bias=True)
        self.second = Linear(16, 5)
        self.gamma = nn.Parameter(torch.full((16,), 0.25))


@pytest.mark.parametrize("make", [Two, lambda: Linear(3, 4, gain=0.0)])
def test_rows_are_those_of_the_initialiser(make):
    initialiser = Initialiser(make)
    names = [name for name, _ in initialiser.template.named_parameters()]
    draws = initialiser.flat_draws(names, DEVICE)
    values = initialiser.sample(KEYS, torch.device("cpu"))
    expected = torch.cat([values[name].reshape(len(KEYS), -1) for name in names], dim=1)
    flat = torch.full((8, expected.shape[1]), -7.0, device=DEVICE)
    index = torch.tensor([6, 1, 0, 3, 4], device=DEVICE)
    keys = torch.from_numpy(KEYS.view(np.int64)).to(DEVICE)
    draw_rows(flat, index, keys, draws)
    assert torch.equal(flat[index].cpu(), expected)
    assert (flat[[2, 5, 7]] == -7.0).all()


def test_parameters_that_are_not_declared_are_drawn_elsewhere():
    initialiser = Initialiser(lambda: nn.Linear(3, 2))
    assert initialiser.flat_draws(["weight", "bias"], DEVICE) is None
