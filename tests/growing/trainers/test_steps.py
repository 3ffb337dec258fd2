"""Updates with kernels called directly: those of torch's optimisers, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esper.growing.runs import Recipe
from esper.growing.trainers import steps
from esper.growing.trainers.program import Program, make_optimizer
from esper.growing.trainers.steps import Steps
from run_support import make_job, make_task, mlp


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize("sometimes", [False, True], ids=["all", "without a gradient at times"])
def test_weights_are_those_of_torchs_clipping_and_step(optimizer, clip, sometimes):
    recipe = Recipe(optimizer, 0.01, 0.1, clip, 32, 10)
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randn(16, 8, generator=draw) for _ in range(8)]

    def make():
        network = nn.Sequential(mlp(5, 0), nn.Linear(3, 3))
        nn.init.ones_(network[1].weight)
        nn.init.ones_(network[1].bias)
        return network.eval(), make_optimizer(network, recipe, torch.device("cpu"))

    def loss(network, place):
        used = network[0] if sometimes and place % 3 == 1 else network
        return used(batches[place]).square().mean()

    one, other = make(), make()
    fast = Steps(list(one[0].parameters()), one[1], clip)
    for place in range(8):
        for _, made in (one, other):
            made.param_groups[0]["lr"] = 0.01 * (place + 1)
        fast.take(loss(one[0], place))
        other[1].zero_grad()
        loss(other[0], place).backward()
        if clip:
            nn.utils.clip_grad_norm_(other[0].parameters(), clip, foreach=True)
        other[1].step()
    state, expected = one[0].state_dict(), other[0].state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    mine, theirs = one[1].state_dict()["state"], other[1].state_dict()["state"]
    assert all(torch.equal(mine[p][n], theirs[p][n]) for p in theirs for n in theirs[p])


def test_a_run_updates_its_weights_by_them(tmp_path, monkeypatch):
    program, steps_taken = Program(make_job(0, tmp_path), make_task()), []
    monkeypatch.setattr(
        steps.Steps, "_adamw", lambda self, grads, state: steps_taken.append(len(grads))
    )
    for _ in range(3):
        program.run_eager()
    assert steps_taken == [len(program.params)] * 2, "the first one makes the state"
