"""A seed in TRAINING learns from its shadow row and the host does not notice."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from esper.kasmina import OptimConfig, Population
from esper.leyline import BlendStyle, SeedStage
from support import (
    DEVICES,
    KINDS,
    ONE_OF_EACH,
    batch,
    bring_to,
    host_state,
    learnable,
    make_population,
    poison,
)


def state_after(population: Population, kind: str, batches: int = 2) -> dict[str, torch.Tensor]:
    """Losses of the main rows, the hosts' parameters and buffers after a few batches."""
    device = str(population.device)
    losses = [
        population.train_batch(*batch(population.members, b, device=device, kind=kind)).loss_E
        for b in range(batches)
    ]
    return {"losses": torch.stack(losses)} | host_state(population)


def assert_same_state(
    executor: str, left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]
) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert_same(executor, value, right[name])


def assert_same(executor: str, left: torch.Tensor, right: torch.Tensor) -> None:
    if executor == "loop":
        assert torch.equal(left, right), "bit for bit under loop"
    else:
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def life_of(population: Population, kind: str) -> dict[str, torch.Tensor]:
    """The state after a few batches, and the outputs before and after them."""
    x, _ = batch(3, seed=9, device=str(population.device), kind=kind)
    before = population.forward(x).detach()
    state = state_after(population, kind)
    return state | {"before": before, "after": population.forward(x).detach()}


@cache
def life_of_host(executor: str, kind: str, device: str) -> dict[str, torch.Tensor]:
    """What becomes of the same population without seeds."""
    return life_of(make_population(3, executor, device=device, kind=kind), kind)


def incubating(
    executor: str, name: str, style: BlendStyle, device: str = "cpu", kind: str = "cnn"
) -> Population:
    """Seeds in TRAINING in every slot, members mixed."""
    grown = make_population(members=3, executor=executor, device=device, kind=kind)
    for slot, members in zip(grown.slots, ([0, 1], [1], [0, 1, 2]), strict=True):
        bring_to(grown, SeedStage.TRAINING, members, slot, name, style=style)
    return grown


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("executor", "kind", "name", "style"),
    [
        ("loop", "cnn", "norm", BlendStyle.GATE),
        ("vmap", "mlp", "mlp", BlendStyle.GATE),
        ("vmap", "resnet", "twin", BlendStyle.ADD),
        *[("vmap", kind, "norm", BlendStyle.ADD) for kind in KINDS],
        *[("vmap", kind, KINDS[kind].seed, BlendStyle.MULTIPLY) for kind in ("cnn", "transformer")],
    ],
)
def test_host_trains_as_if_the_seed_were_not_there(executor, kind, name, style, device):
    """Outputs, losses, parameters and running statistics."""
    grown = incubating(executor, name, style, device, kind)
    assert_same_state(executor, life_of_host(executor, kind, device), life_of(grown, kind))


@pytest.mark.parametrize(
    ("executor", "kind", "name"),
    [("loop", "mlp", "gate"), ("vmap", "mlp", "gate"), ("vmap", "cnn", "conv_heavy")],
)
def test_the_seed_itself_learns_from_the_task_loss(executor, kind, name):
    grown = incubating(executor, name, BlendStyle.ADD, kind=kind)
    grown.set_rates(host_lr=0.0, seed_lr=0.05)
    x, y = batch(3, kind=kind)
    first = grown.train_batch(x, y)
    for _ in range(20):
        last = grown.train_batch(x, y)
    shadow_first, shadow_last = first.shadow_loss_ES, last.shadow_loss_ES
    seeded = torch.tensor(grown.lifecycle.occupied())
    assert torch.equal(torch.isfinite(shadow_first), seeded), "a shadow loss where a seed incubates"
    assert (shadow_last[seeded] < shadow_first[seeded]).all()
    ahead = shadow_last < last.loss_E[:, None]
    assert ahead[seeded].all(), "with its seed on, a member is better than without"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_nan_in_an_incubating_seed_stays_there(executor, kind, device):
    name = KINDS[kind].seed
    grown = incubating(executor, name, BlendStyle.ADD, device, kind)
    poison(grown, "r0c0", name, member=1)
    assert_same_state(executor, life_of_host(executor, kind, device), life_of(grown, kind))
    bank_key = (0, grown.blueprints.index(name))
    bank = grown.network.banks[bank_key].flat_EP.detach()
    assert torch.isnan(bank[1]).all()
    assert torch.isfinite(bank[0]).all(), "the neighbour in the same bank"
    for key, other in grown.network.banks.items():
        if key != bank_key:
            assert torch.isfinite(other.flat_EP).all(), "seeds of the same member elsewhere"


@pytest.mark.parametrize(("executor", "kind"), ONE_OF_EACH)
def test_a_shadow_row_trains_its_own_seed_only(executor, kind):
    """Seeds further down are part of the shadow's computation but learn nothing from it."""
    optim, name = OptimConfig(clip_norm=None), KINDS[kind].seed
    grown, alone = (make_population(2, executor, optim=optim, kind=kind) for _ in range(2))
    first, _, last = grown.slots
    for population in (grown, alone):
        bring_to(population, SeedStage.HOLDING, [0, 1], last, name)
    bring_to(grown, SeedStage.TRAINING, [0], first, name)
    x, y = batch(2, kind=kind)
    grown.train_batch(x, y)
    alone.train_batch(x, y)
    key = (2, grown.blueprints.index(name))
    assert_same(executor, alone.network.banks[key].flat_EP, grown.network.banks[key].flat_EP)


@pytest.mark.parametrize(
    ("kind", "name", "style"),
    [
        ("mlp", "mlp", BlendStyle.MULTIPLY),
        ("cnn", "conv_heavy", BlendStyle.ADD),
        ("transformer", "mlp", BlendStyle.GATE),
    ],
)
def test_blending_an_incubated_seed_does_not_raise_the_held_out_loss(kind, name, style):
    """Incubate, then alpha 0.1: the held-out loss rises by no more than a tolerance."""
    population = make_population(members=3, kind=kind)
    sample = learnable(kind, members=3)
    for _ in range(20):
        population.train_batch(*sample(32))
    slot = population.slots[1]
    bring_to(population, SeedStage.TRAINING, [0, 1, 2], slot, name, style=style)
    for _ in range(40):
        population.train_batch(*sample(32))
    x, y = sample(400)
    off = population.evaluate(x, y).loss_R
    alpha = np.zeros((3, 3), dtype=np.float32)
    alpha[:, population.slots.index(slot)] = 0.1
    little = population.evaluate(x, y, alpha_RS=alpha).loss_R
    # running statistics are of the seed switched off: a little of it does not quite fit them
    assert (little - off).max() < (0.05 if kind == "batchnorm" else 0.02)
    if kind == "batchnorm":
        return
    alpha[alpha > 0] = 1.0
    whole = population.evaluate(x, y, alpha_RS=alpha).loss_R
    assert (whole - off).mean() < 0.05, "even all at once, what incubated is not a stranger"
