"""Contexts and the compute clock on a GPU: with captured graphs, without, and against the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from context_support import EMPTY, Planner, fixed_budget
from cuda_support import NEEDS_CUDA
from engine_support import small_engine, small_task
from esper.leyline import PLANNED, VARIED, LifecycleOp
from esper.tamiyo.baselines import RandomPolicy
from support import batch, make_population

pytestmark = NEEDS_CUDA


def engine(context, graphs: str, device: str = "cuda", **config):
    spec = replace(small_task(episode_length=6), context=context)
    return small_engine(
        spec, members=6, device=device, executor="vmap", precision="fp32", graphs=graphs, **config
    )


TOPOLOGY = np.array([[EMPTY] * 3, [2, EMPTY, 1], [EMPTY, 0, EMPTY]] * 2)
ACTIONS = {2: [(LifecycleOp.STOP, 0, 0), (LifecycleOp.PRUNE, 1, 0)]}


@pytest.mark.parametrize(
    "context", [PLANNED, fixed_budget(2.5), VARIED], ids=["1", "2.5", "varied"]
)
def test_masked_batches_replay_as_they_run(context):
    """The mask changes between replays of one graph."""
    replayed, eager = engine(context, "on"), engine(context, "off")
    for _ in range(2):
        first = replayed.run_rollout(Planner(TOPOLOGY, ACTIONS)).outcome
        second = eager.run_rollout(Planner(TOPOLOGY, ACTIONS)).outcome
        np.testing.assert_allclose(first.loss_E, second.loss_E, rtol=1e-3, atol=1e-3)
        assert first.flops_ratio_E.tolist() == second.flops_ratio_E.tolist()
    assert replayed.graph_report().replays > 0


def test_the_gpu_trains_what_the_cpu_trains():
    gpu, cpu = engine(PLANNED, "on"), engine(PLANNED, "off", device="cpu")
    first = gpu.run_rollout(Planner(TOPOLOGY, ACTIONS)).outcome
    second = cpu.run_rollout(Planner(TOPOLOGY, ACTIONS)).outcome
    np.testing.assert_allclose(first.loss_E, second.loss_E, rtol=2e-2, atol=2e-2)
    assert gpu.context.clock.trained_E.tolist() == cpu.context.clock.trained_E.tolist()


def test_an_inactive_member_is_bit_for_bit_unchanged_on_a_gpu():
    population = make_population(3, "vmap", device="cuda")
    population.plant([1], "r0c0", "conv_light", prunable=True)
    x, y = (part.cuda() for part in batch(3, 0))
    population.train_batch(x, y)
    before = population.network.host.flat_EP.detach().clone()
    moments = {n: v.clone() for n, v in population.trainer.host_optimizer.state["host"].items()}
    population.set_active(torch.tensor([True, False, True], device="cuda"))
    x[1] = torch.nan
    population.train_batch(x, y)
    assert torch.equal(population.network.host.flat_EP[1], before[1])
    for name, value in moments.items():
        assert torch.equal(population.trainer.host_optimizer.state["host"][name][1], value[1])
    assert not torch.equal(population.network.host.flat_EP[0], before[0])


def test_random_growth_survives_varied_contexts_on_a_gpu():
    made = engine(VARIED, "auto")
    for _ in range(3):
        assert np.isfinite(made.run_rollout(RandomPolicy(2)).outcome.score_E).all()
