"""The update rules are torch's, bit for bit, without torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from esper.growing.runs import Recipe
from esper.growing.trainers.update import Update

KINDS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.03, weight_decay=0.1, fused=True),
    "sgd": lambda params: torch.optim.SGD(
        params, lr=0.03, momentum=0.9, weight_decay=0.1, fused=True
    ),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))
    made.unused = nn.Linear(2, 2)  # gets no gradient
    made.forward = lambda x: made[3](made[2](made[1](made[0](x))))  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
def test_an_update_is_that_of_torch_bit_for_bit(kind: str, clip: float):
    ours, theirs = network(), network()
    recipe = Recipe(kind, 0.03, 0.1, clip, 16, 10)  # type: ignore[arg-type]
    update = Update(list(ours.parameters()), recipe, 0.03)
    optimizer = KINDS[kind](theirs.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        x = torch.randn(16, 5, generator=generator)
        y = torch.randint(0, 3, (16,), generator=generator)
        update.zero_grad()
        F.cross_entropy(ours(x), y).backward()
        update.step()
        optimizer.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert ours.unused.weight.grad is None
    assert ours.unused.weight not in update.state


def test_it_does_not_import_the_compiler():
    program = (
        "import sys, torch; from esper.growing.runs import Recipe\n"
        "from esper.growing.trainers.update import Update\n"
        "m = torch.nn.Linear(2, 2); m(torch.ones(1, 2)).sum().backward()\n"
        "Update(list(m.parameters()), Recipe('adamw', .1, .1, 1., 2, 2), .1).step()\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
