"""Every parameter trains at one rate at every moment, or not at all."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch

from esper.kasmina import OptimConfig, Population
from esper.kasmina.stacked.store import ParameterStore
from esper.kasmina.training.training import GATE_KEY, HOST_KEY
from esper.leyline import BlendStyle, SeedStage
from support import KINDS, batch, bring_to, make_population, pass_step

KIND = 1  # conv_light
STYLES = [("cnn", BlendStyle.ADD)] + [(kind, BlendStyle.GATE) for kind in KINDS]
EXPECTED = {
    SeedStage.GERMINATED: "frozen",
    SeedStage.TRAINING: "seed",
    SeedStage.BLENDING: "seed",
    SeedStage.HOLDING: "seed",
    SeedStage.FOSSILIZED: "static",
    SeedStage.PRUNED: "frozen",
}


def with_seed(
    stage: SeedStage, style: BlendStyle = BlendStyle.ADD, kind: str = "cnn", **settings
) -> Population:
    """Member 0 has no seed, member 1 one (cnn: conv_light) in its second slot at `stage`."""
    population = make_population(members=2, kind=kind, **settings)
    slot, name = population.slots[1], KINDS[kind].seed
    if stage is SeedStage.PRUNED:
        bring_to(population, SeedStage.TRAINING, [1], slot, name, style=style)
        pass_step(population)
        population.prune([1], slot)
    else:
        bring_to(population, stage, [1], slot, name, style=style)
    if stage is SeedStage.BLENDING:
        population.begin_step()
    return population


def stores_of(population: Population) -> dict[Hashable, ParameterStore]:
    """Key of the optimiser -> store."""
    network = population.network
    gates = {(slot, GATE_KEY): store for slot, store in network.gates.items()}
    return {HOST_KEY: network.host, **network.banks, **gates}


def groups_of(population: Population) -> dict[Hashable, list[str]]:
    """Key of a store of seeds -> how it is trained in each member."""
    masks = population.trainer.masks()
    found = {key: ["frozen"] * population.members for key in stores_of(population)}
    del found[HOST_KEY]
    for key, active_E, static_E in zip(masks.keys, masks.active_ME, masks.static_ME, strict=True):
        assert not (static_E & ~active_E).any()
        for member in active_E.nonzero()[0]:
            found[key][member] = "static" if static_E[member] else "seed"
    return found


@pytest.mark.parametrize(("kind", "style"), STYLES)
@pytest.mark.parametrize("stage", list(EXPECTED))
def test_each_parameter_is_in_exactly_one_group(stage, kind, style):
    population = with_seed(stage, style, kind)
    groups = groups_of(population)
    assert len(groups) == (2 if style is BlendStyle.GATE else 1)
    assert all(group_E == ["frozen", EXPECTED[stage]] for group_E in groups.values())


@pytest.mark.parametrize(
    ("stage", "kind", "style", "law"),
    [
        *[(stage, "mlp", BlendStyle.GATE, "adamw") for stage in EXPECTED],
        *[(stage, "cnn", BlendStyle.ADD, "sgd") for stage in EXPECTED],
        *[(SeedStage.BLENDING, kind, BlendStyle.GATE, "adamw") for kind in KINDS],
    ],
)
def test_a_parameter_moves_if_and_only_if_its_group_trains(stage, kind, style, law):
    """Weight decay would move a row that is updated by mistake, so it is on."""
    population = with_seed(stage, style, kind, optim=OptimConfig(kind=law, weight_decay=0.1))
    stores = stores_of(population)
    for owner, store in stores.items():
        if owner != HOST_KEY:
            store.flat_EP.detach()[0] = 0.5  # no seed stands there, but decay would move it
    before = {owner: store.flat_EP.detach().clone() for owner, store in stores.items()}
    groups = groups_of(population) | {HOST_KEY: ["host", "host"]}
    population.train_batch(*batch(2, kind=kind))
    for owner, store in stores.items():
        moved = (store.flat_EP.detach() != before[owner]).any(dim=1)
        assert moved.tolist() == [group != "frozen" for group in groups[owner]], owner


def test_gate_of_a_seed_with_another_style_is_left_alone():
    population = make_population(members=2, optim=OptimConfig(kind="adamw", weight_decay=0.1))
    bring_to(population, SeedStage.HOLDING, [0], "r0c1", "conv_light", style=BlendStyle.GATE)
    bring_to(population, SeedStage.HOLDING, [1], "r0c1", "conv_light", style=BlendStyle.ADD)
    population.network.gates[1].flat_EP.detach().fill_(0.5)  # something that decay would move
    before = population.network.gates[1].flat_EP.detach().clone()
    population.train_batch(*batch(2))
    after = population.network.gates[1].flat_EP.detach()
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_fossilising_changes_the_rate_and_nothing_else():
    """Values and optimiser state carry over; from then on the host's rate applies."""
    population = with_seed(SeedStage.HOLDING)
    population.set_rates(host_lr=0.0, seed_lr=0.05)
    population.train_batch(*batch(2))
    bank = population.network.banks[1, KIND].flat_EP
    key = (1, KIND)
    values = bank.detach().clone()
    state = {k: v.clone() for k, v in population.trainer.seed_optimizer.state[key].items()}
    x, _ = batch(2)
    out = population.forward(x).detach().clone()
    population.fossilize([1], "r0c1")
    assert torch.equal(bank.detach(), values)
    for name, value in state.items():
        assert torch.equal(population.trainer.seed_optimizer.state[key][name], value)
    assert torch.equal(population.forward(x), out)
    population.train_batch(*batch(2))
    assert torch.equal(bank.detach(), values), "the host's rate is 0"
    assert not torch.equal(
        population.trainer.seed_optimizer.state[key]["momentum"], state["momentum"]
    )


def test_seeds_learn_at_their_own_rate():
    moves = []
    for seed_lr in (0.01, 0.02):
        fresh = with_seed(SeedStage.HOLDING, optim=OptimConfig(clip_norm=None, momentum=0.0))
        fresh.set_rates(0.05, seed_lr)
        before = fresh.network.banks[1, KIND].flat_EP.detach().clone()
        fresh.train_batch(*batch(2))
        moves.append(fresh.network.banks[1, KIND].flat_EP.detach()[1] - before[1])
    torch.testing.assert_close(moves[1], 2 * moves[0], rtol=1e-3, atol=1e-7)


def test_rate_scaled_by_weight_norm():
    """The seed's step is the plain step times rms(seed) / rms(host)."""
    moves, ratio = {}, 0.0
    for scaling in ("none", "weight_norm"):
        p = with_seed(SeedStage.HOLDING, optim=OptimConfig(momentum=0.0), seed_lr_scaling=scaling)
        bank, host = p.network.banks[1, KIND].flat_EP, p.network.host.flat_EP
        before = bank.detach().clone()
        ratio = (bank[1].square().mean() / host[1].square().mean()).sqrt().item()
        p.train_batch(*batch(2))
        moves[scaling] = bank.detach()[1] - before[1]
    torch.testing.assert_close(moves["weight_norm"], ratio * moves["none"], rtol=1e-2, atol=1e-6)


def test_a_reborn_seed_starts_without_its_predecessors_momentum():
    population = with_seed(SeedStage.HOLDING)
    population.train_batch(*batch(2))
    first = population.network.banks[1, KIND].flat_EP.detach()[1].clone()
    population.prune([1], "r0c1", speed=0)
    for _ in range(7):
        pass_step(population)
    population.germinate([1], "r0c1", "conv_light")
    assert not population.trainer.seed_optimizer.state[1, KIND]["momentum"][1].any()
    second = population.network.banks[1, KIND].flat_EP.detach()[1]
    assert not torch.equal(first, second)
    drawn = population.network.banks[1, KIND].named_row(second)
    assert (drawn["scale.gamma"] == drawn["scale.gamma"][0]).all(), "fresh initial values"


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_seed_pruned_by_a_ramp_leaves_no_gradient_for_the_next_one(executor):
    """Frozen, but in the forward pass: what is sent to it must not wait for its successor."""
    population = with_seed(SeedStage.HOLDING, BlendStyle.GATE, executor=executor)
    population.prune([1], "r0c1", speed=3)
    pass_step(population, train=True)
    assert 0 < population.lifecycle.alpha_ES[1, 1] < 1
    for store in (*population.network.banks.values(), *population.network.gates.values()):
        assert store.flat_EP.grad is None
