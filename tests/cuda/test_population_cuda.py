"""On a GPU: a train batch and a validation batch never wait for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuda_support import NEEDS_CUDA, sync_mode
from esper.kasmina.snapshot import finite_members
from esper.leyline import BlendStyle, SeedStage
from support import batch, bring_to, make_population

pytestmark = NEEDS_CUDA


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_no_synchronisation_inside_a_step(executor):
    population = make_population(4, executor, device="cuda")
    bring_to(population, SeedStage.FOSSILIZED, [0, 1], "r0c0", "conv_light", style=BlendStyle.GATE)
    bring_to(population, SeedStage.BLENDING, [2, 3], "r0c1", "conv_heavy", tempo=8)
    bring_to(population, SeedStage.TRAINING, [1, 3], "r0c2", "attention")
    x, y = batch(4, device="cuda")
    population.train_batch(x, y)
    population.evaluate(x, y)
    off = np.zeros((4, 3), dtype=np.float32)
    torch.cuda.synchronize()
    with sync_mode("error"):
        population.begin_step()  # alphas move: the plans are made anew and go up without waiting
        stats = population.train_batch(x, y)
        result = population.evaluate(x, y)
        population.evaluate(x, y, alpha_RS=off)
    assert torch.isfinite(stats.loss_E).all()
    assert torch.isfinite(result.loss_R).all()


def test_members_with_nan_or_infinite_weights_are_found():
    population = make_population(4, device="cuda")
    weights = population.network.host.flat_EP.detach()
    assert finite_members(population).tolist() == [True] * 4
    weights[1, 5], weights[2, -1], weights[3, 0] = torch.nan, -torch.inf, 3e38
    assert finite_members(population).tolist() == [True, False, False, True]
