"""On a GPU: judging members and setting them back waits for nothing; numbers as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cuda_support import NEEDS_CUDA, sync_mode
from esper.kasmina import Population
from esper.kasmina.snapshot import MemberSnapshots, finite_members
from esper.leyline import BlendStyle, SeedStage
from esper.tolaria.batch_ops import RowTotals, language_merit, process_fused_val_batch
from esper.tolaria.counterfactual_eval import CounterfactualConfig, attribute, plan_coalitions
from esper.tolaria.governor import GovernorConfig, TolariaGovernor
from support import batch, bring_to, make_population, pass_step

pytestmark = NEEDS_CUDA
ONES = np.ones(4)


def grown(executor: str, device: str) -> Population:
    population = make_population(4, executor, device=device)
    bring_to(population, SeedStage.FOSSILIZED, [0, 1], "r0c0", "conv_light", style=BlendStyle.GATE)
    bring_to(population, SeedStage.HOLDING, [2, 3], "r0c1", "conv_heavy")
    bring_to(population, SeedStage.TRAINING, [1, 3], "r0c2", "attention")
    return population


def measure(population: Population, x: Tensor, y: Tensor) -> tuple[RowTotals, object]:
    plan = plan_coalitions(population, CounterfactualConfig(), 0, 0, 0)
    totals = RowTotals.zeros(plan.table.rows, population.device)
    process_fused_val_batch(population, x, y, language_merit, plan.table, totals)
    return totals, plan


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_nothing_is_waited_for(executor):
    population = grown(executor, "cuda")
    pass_step(population, train=True)
    governor = TolariaGovernor(population, 0.2, GovernorConfig(snapshot_steps=1))
    governor.reset(ONES)
    x, y = batch(1, seed=4, device="cuda")
    measure(population, x, y)
    loss = np.array([1.0, np.nan, 1.0, np.nan])
    torch.cuda.synchronize()
    with sync_mode("error"):
        finite_E = finite_members(population)
        measure(population, x, y)
        governor.review(0, ONES, ONES, ONES, ONES > 0, ONES)
        governor.after_actions(0, ONES > 0, ONES)
        verdicts = governor.review(1, loss, loss, ONES, ONES > 0, ONES)
    assert finite_E.all()
    assert verdicts.rolled_back_E.tolist() == [False, True, False, True]
    assert verdicts.seeds_pruned_E.tolist() == [0, 1, 0, 2]


def test_the_same_contributions_as_on_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        totals, plan = measure(grown("vmap", device), *batch(1, seed=4, device=device))
        sums = (totals.merit_R, totals.gain_R, totals.gain_square_R)
        found.append(attribute(plan, *(t.cpu().numpy() for t in sums), totals.samples))
    for name in ("contribution_ES", "shapley_ES"):
        one, two = (getattr(f, name) for f in found)
        np.testing.assert_allclose(one, two, atol=1e-4)
        assert np.isfinite(one).any()


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_members_are_set_back_on_the_device(executor):
    population = grown(executor, "cuda")
    snapshots = MemberSnapshots(population)
    snapshots.take(ONES > 0)
    host = population.network.host.flat_EP.detach()
    then = host.clone()
    pass_step(population, train=True)
    now = host.clone()
    host[1] = float("nan")
    snapshots.restore(np.array([False, True, False, False]))
    assert torch.equal(host[1], then[1])
    assert torch.equal(host[[0, 2, 3]], now[[0, 2, 3]])
    assert not torch.equal(then, now)
