"""Random layers on a GPU: the CPU's numbers, new ones in every replay, and no waiting."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cuda_support import (
    DEVICE,
    NEEDS_CUDA,
    SHORT,
    assert_close,
    assert_same,
    engine_on_gpu,
    state_of,
    watched_episode,
)
from engine_support import histories, random_policy
from esper.device import rng
from esper.device.graphs import CudaRecorder, GraphCache
from esper.kasmina import CNNHost, Population
from esper.leyline import InjectionSpec
from esper.tolaria.batch_ops import TrainTotals, process_train_batch
from esper.tolaria.runtime import autocast
from graph_support import Rerun
from random_support import LAYERS, RandomHost, blueprints_of, grow, random_population, random_seed
from support import batch

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]


@pytest.fixture(autouse=True)
def seeds():
    with blueprints_of(t_random=random_seed(LAYERS["dropout"])):
        yield


class DroppingHost(CNNHost):
    """As the host of `SHORT`, with dropout behind two of its blocks."""

    def __init__(self) -> None:
        super().__init__(10, 1, 3, 2, kernel_size=1)
        for pool in (0, 2):
            self.pools[pool] = nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Dropout(0.3))


DROPPING = replace(SHORT, host_factory=DroppingHost)


def on_gpu(executor: str = "vmap", layer: str = "dropout", members: int = 3) -> Population:
    host = lambda: RandomHost(LAYERS[layer])  # noqa: E731
    return random_population(members, executor, host, ("t_random",), device="cuda")


def trained(
    population: Population, cache: GraphCache | None, precision: str = "fp32"
) -> dict[str, Tensor]:
    """Two rounds of four batches with seeds that draw too."""
    totals = TrainTotals.zeros(population.members, 3, DEVICE)
    losses = []
    for round_index in range(2):
        population.reset(round_index)
        grow(population, "t_random")
        for _ in range(4):
            x, y = batch(population.members, device="cuda")
            with autocast(DEVICE, precision, cached=False):
                process_train_batch(population, x, y, totals, None, cache)
            losses.append(totals.loss_E.clone())
    return state_of(population) | {"losses": torch.stack(losses), "s": totals.shadow_loss_ES}


def test_words_are_those_of_the_cpu():
    keys = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, 7))
    assert torch.equal(rng.random_words(keys.cuda(), 1000).cpu(), rng.random_words(keys, 1000))
    assert torch.equal(rng.derive_keys(keys.cuda(), 5).cpu(), rng.derive_keys(keys, 5))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replays_are_the_work_bit_for_bit(precision):
    """A graph in which keys or the counter of passes were fixed would repeat its masks."""
    cache = GraphCache(CudaRecorder(DEVICE))
    replayed = trained(on_gpu(), cache, precision)
    assert cache.on, cache.problem
    assert cache.replays > cache.captures > 0
    assert_same(replayed, trained(on_gpu(), GraphCache(Rerun()), precision))


def test_replays_agree_with_exact_plans():
    replayed = trained(on_gpu(), GraphCache(CudaRecorder(DEVICE)))
    assert_close(replayed, trained(on_gpu(), None), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layer", list(LAYERS))
def test_vmap_agrees_with_loop_and_with_the_cpu(layer):
    host = lambda: RandomHost(LAYERS[layer])  # noqa: E731
    ends = []
    for executor, device in (("vmap", "cuda"), ("loop", "cuda"), ("vmap", "cpu")):
        population = random_population(3, executor, host, ("t_random",), device=device)
        grow(population, "t_random")
        losses = [population.train_batch(*batch(3, s, device=device)).loss_E for s in range(2)]
        ends.append({"losses": torch.stack(losses).cpu()})
    assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-4)
    assert_close(ends[0], ends[2], rtol=1e-3, atol=1e-4)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        h = x.unflatten(-1, (4, 8)).transpose(1, 2)
        p = 0.5 if self.training else 0.0
        return F.scaled_dot_product_attention(h, h, h, dropout_p=p).transpose(1, 2).flatten(2)


class AttentionHost(nn.Module):
    topology = "transformer"

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(5, 32), Attention(), nn.Linear(32, 5)])

    def segments(self):
        return self.parts

    def injection_specs(self) -> tuple[InjectionSpec, ...]:
        return ()

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_dropout_inside_fused_attention_is_drawn_from_our_streams(executor, precision, caplog):
    x = torch.randn(2, 6, 10, 5, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    outs = []
    with caplog.at_level(logging.WARNING):
        for disturbance in (1, 2):
            torch.manual_seed(disturbance)
            population = random_population(2, executor, AttentionHost, (), (), device="cuda")
            with autocast(DEVICE, precision):
                outs.append(population.forward(x, training=True).detach())
    assert population.network.sites[1].plain_attention
    assert torch.equal(*outs)
    assert not caplog.records


def test_the_gpus_generator_is_left_alone():
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    trained(on_gpu(), GraphCache(CudaRecorder(DEVICE)))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_an_exact_run_repeats_itself():
    runs = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        engine = engine_on_gpu(DROPPING, graphs="on", executor="vmap")
        engine.run_rollout(random_policy(3, DROPPING))
        assert engine.graph_report().replays > 0
        runs.append(histories(engine.episode))
    assert_same(*runs)


def test_drawing_waits_for_nothing():
    engine = engine_on_gpu(DROPPING, executor="vmap")
    policy = random_policy(3, DROPPING)
    engine.run_rollout(policy)  # kernels, banks and moments are set up
    engine.use_graphs(GraphCache(CudaRecorder(DEVICE)))
    assert watched_episode(engine, policy) == DROPPING.episode_length
    report = engine.graph_report()
    assert report.on, report.reason
    assert report.replays > report.captures > 3
