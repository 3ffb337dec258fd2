"""Hosts: a chain of segments, sane at birth; costs counted against cases counted by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from esper.kasmina import CNNHost, Population
from esper.kasmina.counting import count_macs, count_parameters
from esper.kasmina.rng import forked_rng
from esper.leyline import BlendStyle, HostProtocol, SeedStage
from support import bring_to, make_population

HOSTS = [
    {"num_classes": 10, "in_channels": 3, "base_channels": 8},
    {"num_classes": 10, "in_channels": 1, "base_channels": 2, "kernel_size": 1},
    {"num_classes": 10, "in_channels": 3, "base_channels": 1, "kernel_size": 1},
    {"num_classes": 10, "in_channels": 3, "base_channels": 2, "kernel_size": 1, "pool_layers": 0},
    {"num_classes": 100, "in_channels": 3, "n_blocks": 5, "base_channels": 16},
]


@pytest.mark.parametrize("settings", HOSTS)
@pytest.mark.parametrize("seed", range(3))
def test_first_loss_is_within_10_percent_of_chance(settings, seed):
    with forked_rng(seed):
        host = CNNHost(**settings)
        x = torch.randn(256, settings["in_channels"], 16, 16)
        y = torch.randint(0, settings["num_classes"], (256,))
    loss = F.cross_entropy(host(x), y).item()
    assert abs(loss / math.log(settings["num_classes"]) - 1) < 0.1


@pytest.mark.parametrize("settings", HOSTS)
def test_forward_equals_the_chain_and_slots_sit_where_they_say(settings):
    host = CNNHost(**settings)
    assert isinstance(host, HostProtocol)
    x = torch.randn(2, settings["in_channels"], 8, 8)
    h = x
    widths = {}
    for index, segment in enumerate(host.segments()):
        h = segment(h)
        widths[index] = h.shape[1]
    assert torch.equal(h, host(x))
    for spec in host.injection_specs():
        assert widths[spec.position] == spec.channels
    before = [s for s in host.injection_specs() if s.slot_id.startswith("r0")]
    assert all(s.surface == "pre_pool" for s in before)
    assert len(before) == host.channels.__len__()


def test_parameters_of_the_known_hosts():
    """Counted by hand: convolutions without bias, two norm parameters a channel, linear head."""
    baseline = 9 * (3 * 8 + 8 * 16 + 16 * 32) + 2 * (8 + 16 + 32) + 32 * 10 + 10
    assert count_parameters(CNNHost(10, 3, 3, 8)) == baseline == 6418
    impaired = (3 * 1 + 1 * 2 + 2 * 4) + 2 * (1 + 2 + 4) + 4 * 10 + 10
    assert count_parameters(CNNHost(10, 3, 3, 1, kernel_size=1)) == impaired == 77


def test_macs_of_a_host_counted_by_hand():
    """8x8 input, pooled 8 -> 4 -> 2: each convolution at the resolution it works on."""
    host = CNNHost(num_classes=10, in_channels=1, n_blocks=3, base_channels=2, kernel_size=3)
    by_hand = 9 * (1 * 2 * 64 + 2 * 4 * 16 + 4 * 8 * 4) + 8 * 10
    assert count_macs(host, torch.zeros(7, 1, 8, 8)) == by_hand


def test_costs_of_members_counted_by_hand():
    """conv_light: 9 C^2 + 3 C; conv_heavy: 18 C^2 + 5 C; norm: 3 C; a gate: 2 C."""
    population = make_population(members=4)
    width, area = 8, 16  # r0c1 of the 4-8-16 host on 8x8 images
    bring_to(population, SeedStage.HOLDING, [0], "r0c1", "conv_light")
    bring_to(population, SeedStage.HOLDING, [1], "r0c1", "conv_heavy", style=BlendStyle.GATE)
    bring_to(population, SeedStage.HOLDING, [2], "r0c1", "norm")
    bring_to(population, SeedStage.TRAINING, [3], "r0c1", "conv_heavy")
    population.forward(torch.zeros(1, 1, 1, 8, 8))
    host_parameters = 9 * (4 + 4 * 8 + 8 * 16) + 2 * (4 + 8 + 16) + 16 * 5 + 5
    seeds = [9 * width**2 + 3 * width, 18 * width**2 + 7 * width, 3 * width, 0]
    assert population.parameters_E().tolist() == [host_parameters + s for s in seeds]
    host_macs = 9 * (4 * 64 + 4 * 8 * 16 + 8 * 16 * 4) + 16 * 5
    seed_macs = [9 * width**2 * area, 18 * width**2 * area, 0, 0]
    assert population.macs_E().tolist() == [host_macs + s for s in seed_macs]
    reports = population.slot_reports()
    assert reports.report(3, 1).params == 18 * width**2 + 5 * width, "counted, not yet exported"
    assert reports.report(0, 0).blueprint is None


def test_reset_starts_a_new_episode_from_the_rounds_own_streams():
    population = make_population(members=2)
    first = population.network.host.flat_EP.detach().clone()
    bring_to(population, SeedStage.HOLDING, [0, 1], "r0c1")
    population.reset(round_index=1)
    second = population.network.host.flat_EP.detach().clone()
    assert not torch.equal(first, second)
    assert (population.lifecycle.stage_ES == SeedStage.DORMANT).all()
    population.reset(round_index=0)
    assert torch.equal(population.network.host.flat_EP, first)


def test_seed_of_the_run_decides_the_weights():
    def weights(seed: int) -> torch.Tensor:
        return Population(lambda: CNNHost(), (), (), 2, seed=seed).network.host.flat_EP

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
    assert not torch.equal(weights(3)[0], weights(3)[1])
