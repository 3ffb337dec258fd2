"""A seed in TRAINING learns from its shadow row and the host does not notice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.kasmina import OptimConfig, Population
from esper.leyline import BlendStyle, SeedStage
from support import CNN_BLUEPRINTS, DEVICES, batch, bring_to, make_population, poison

EXECUTORS = ["vmap", "loop"]


def host_state_after(population: Population, batches: int = 3) -> tuple[list, torch.Tensor]:
    """Losses of the main rows and the hosts' parameters after a few batches."""
    device = str(population.device)
    losses = [
        population.train_batch(*batch(population.members, seed=b, device=device)).loss_E
        for b in range(batches)
    ]
    return losses, population.network.host.flat_EP.detach().clone()


def assert_same(executor: str, left: torch.Tensor, right: torch.Tensor) -> None:
    if executor == "loop":
        assert torch.equal(left, right), "bit for bit under loop"
    else:
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def bare_and_incubating(executor: str, name: str, style: BlendStyle, device: str = "cpu"):
    """The same population twice; one has seeds in TRAINING in every slot, members mixed."""
    bare = make_population(members=3, executor=executor, device=device)
    grown = make_population(members=3, executor=executor, device=device)
    for slot, members in (("r0c0", [0, 1]), ("r0c1", [1]), ("r0c2", [0, 1, 2])):
        bring_to(grown, SeedStage.TRAINING, members, slot, name, style=style)
    return bare, grown


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("style", list(BlendStyle))
@pytest.mark.parametrize("name", CNN_BLUEPRINTS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_host_trains_as_if_the_seed_were_not_there(executor, name, style, device):
    bare, grown = bare_and_incubating(executor, name, style, device)
    x, _ = batch(3, seed=9, device=device)
    assert_same(executor, bare.forward(x), grown.forward(x))
    bare_losses, bare_host = host_state_after(bare)
    grown_losses, grown_host = host_state_after(grown)
    for left, right in zip(bare_losses, grown_losses, strict=True):
        assert_same(executor, left, right)
    assert_same(executor, bare_host, grown_host)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_seed_itself_learns_from_the_task_loss(executor):
    _, grown = bare_and_incubating(executor, "conv_heavy", BlendStyle.ADD)
    grown.set_rates(host_lr=0.0, seed_lr=0.05)
    x, y = batch(3)
    first = grown.train_batch(x, y)
    for _ in range(30):
        last = grown.train_batch(x, y)
    shadow_first, shadow_last = first.shadow_loss_ES, last.shadow_loss_ES
    seeded = torch.tensor(grown.lifecycle.occupied())
    assert torch.equal(torch.isfinite(shadow_first), seeded), "a shadow loss where a seed incubates"
    assert (shadow_last[seeded] < shadow_first[seeded]).all()
    ahead = shadow_last < last.loss_E[:, None]
    assert ahead[seeded].all(), "with its seed on, a member is better than without"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_nan_in_an_incubating_seed_stays_there(executor, device):
    bare, grown = bare_and_incubating(executor, "conv_light", BlendStyle.ADD, device)
    poison(grown, "r0c0", "conv_light", member=1)
    bare_losses, bare_host = host_state_after(bare)
    grown_losses, grown_host = host_state_after(grown)
    assert_same(executor, bare_losses[-1], grown_losses[-1])
    assert_same(executor, bare_host, grown_host)
    slot, kind = 0, grown.blueprints.index("conv_light")
    bank = grown.network.banks[slot, kind].flat_EP.detach()
    assert torch.isnan(bank[1]).all()
    assert torch.isfinite(bank[0]).all(), "the neighbour in the same bank"
    for key, other in grown.network.banks.items():
        if key != (slot, kind):
            assert torch.isfinite(other.flat_EP).all(), "seeds of the same member elsewhere"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_shadow_row_trains_its_own_seed_only(executor):
    """Seeds further down are part of the shadow's computation but learn nothing from it."""
    grown = make_population(members=2, executor=executor, optim=OptimConfig(clip_norm=None))
    alone = make_population(members=2, executor=executor, optim=OptimConfig(clip_norm=None))
    for population in (grown, alone):
        bring_to(population, SeedStage.HOLDING, [0, 1], "r0c2", "conv_light")
    bring_to(grown, SeedStage.TRAINING, [0], "r0c0", "conv_light")
    x, y = batch(2)
    grown.train_batch(x, y)
    alone.train_batch(x, y)
    key = (2, grown.blueprints.index("conv_light"))
    assert_same(executor, alone.network.banks[key].flat_EP, grown.network.banks[key].flat_EP)


@pytest.mark.parametrize("style", list(BlendStyle))
def test_blending_an_incubated_seed_does_not_raise_the_held_out_loss(style):
    """Incubate, then alpha 0.1: the held-out loss rises by no more than a tolerance."""
    population = make_population(members=3)
    generator = torch.Generator().manual_seed(5)
    prototypes = torch.randn(5, 1, 8, 8, generator=generator)

    def sample(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.randint(0, 5, (3, count), generator=generator)
        return prototypes[y] + 0.8 * torch.randn(3, count, 1, 8, 8, generator=generator), y

    for _ in range(20):
        population.train_batch(*sample(32))
    slot = "r0c1"
    bring_to(population, SeedStage.TRAINING, [0, 1, 2], slot, "conv_heavy", style=style)
    for _ in range(40):
        population.train_batch(*sample(32))
    x, y = sample(400)
    off = population.evaluate(x, y).loss_R
    alpha = np.zeros((3, 3), dtype=np.float32)
    alpha[:, population.slots.index(slot)] = 0.1
    little = population.evaluate(x, y, alpha_RS=alpha).loss_R
    assert (little - off).max() < 0.02
    alpha[alpha > 0] = 1.0
    whole = population.evaluate(x, y, alpha_RS=alpha).loss_R
    assert (whole - off).mean() < 0.05, "even all at once, what incubated is not a stranger"
