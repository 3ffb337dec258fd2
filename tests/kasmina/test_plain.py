"""A plain model is the member without Esper: same output, no cost above the member's, its own."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from esper.kasmina import BlueprintRegistry, Population
from esper.kasmina.layers.counting import count_macs, count_parameters
from esper.kasmina.plain.folding import simplify
from esper.leyline import BlendStyle, LifecycleOp, SeedStage
from plain_support import (
    AREA,
    CNN_SEEDS,
    RANKS,
    SLOTS,
    WIDTH,
    UserCNN,
    assert_same_output,
    called,
    chain,
    classes_of,
    grown,
    images,
    planted,
    seeds_of_our_own,
    stir,
    vector_host,
)
from support import CNN_BLUEPRINTS, batch, bring_to, good_signals, make_population, tiny_host


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    with seeds_of_our_own():
        yield


# ---- the same output ---------------------------------------------------------------------------


def test_every_stage_has_the_members_output():
    """Two seeds live through all of it, one to its removal, one to permanence."""
    population = make_population(members=2, slots=SLOTS)
    seen = set()
    ramping = 0

    def check() -> None:
        nonlocal ramping
        for member, alpha in enumerate(population.lifecycle.alpha_ES[:, 2]):
            seen.add(SeedStage(population.lifecycle.stage_ES[member, 2]))
            ramping += 0 < alpha < 1
            plain = assert_same_output(population, member, images())
            assert any(n.startswith("seeds.") for n in plain.state_dict()) == (alpha > 0)

    def until(*stages: SeedStage) -> None:
        for _ in range(30):
            check()
            if (population.lifecycle.stage_ES[:, 2] == stages).all():
                return
            population.begin_step()
            check()
            population.end_step(good_signals(population))
            check()
            if population.lifecycle.legal_ops()[:, 2, LifecycleOp.ADVANCE].all():
                population.advance([0, 1], "r0c1")
        raise AssertionError(f"not {stages} in 30 steps")

    check()
    population.germinate([0, 1], "r0c1", "conv_light", tempo=3)
    stir(population)
    until(SeedStage.HOLDING, SeedStage.HOLDING)
    population.fossilize([1], "r0c1")
    population.prune([0], "r0c1", speed=3)
    until(SeedStage.DORMANT, SeedStage.FOSSILIZED)
    assert seen == set(SeedStage) - {SeedStage.PLANTED}
    assert ramping >= 4


SEEDS = (*CNN_BLUEPRINTS, *CNN_SEEDS)
ALPHAS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0078125, 1.0, width=32))
SLOT = st.none() | st.tuples(st.sampled_from(SEEDS), st.sampled_from(list(BlendStyle)), ALPHAS)


@settings(max_examples=40, derandomize=True)
@given(st.tuples(*[SLOT] * len(SLOTS)))
def test_any_topology_has_the_members_output(choices):
    seeds = [(slot, *seed) for slot, seed in zip(SLOTS, choices, strict=True) if seed]
    plain = assert_same_output(grown(*seeds), 0, images())
    assert classes_of(plain) == {"torch"}
    assert plain.meta["untraced"] == ()


@pytest.mark.parametrize(
    ("name", "style"),
    zip([*BlueprintRegistry.names("cnn"), *CNN_SEEDS], itertools.cycle(BlendStyle)),
)
def test_every_blueprint_becomes_torch_modules(name, style):
    plain = assert_same_output(grown(("r0c1", name, style, 0.37)), 0, images())
    assert classes_of(plain) == {"torch"}
    assert plain.meta["untraced"] == ()


# ---- no more than needed -----------------------------------------------------------------------


def test_without_live_seeds_the_plain_model_is_the_host():
    population = make_population(members=1)
    bring_to(population, SeedStage.TRAINING, [0], "r0c1", "conv_light")
    plain = assert_same_output(population, 0, images())
    assert plain.state_dict().keys() == tiny_host().state_dict().keys()
    assert count_parameters(plain) == population.parameters_E()[0]


@pytest.mark.parametrize(("style", "alpha"), [(BlendStyle.ADD, 0.3), (BlendStyle.GATE, 1.0)])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("conv_light", 9 * WIDTH**2 + 2 * WIDTH), ("norm", 2 * WIDTH), ("attention", 2 * 18 + 14)],
)
def test_scales_and_alphas_are_folded_into_the_layer_before(name, style, alpha, parameters):
    """conv_light and norm lose their scale; attention keeps it (8 -> 2 -> 8), alpha inside."""
    population = grown(("r0c1", name, style, alpha))
    plain = assert_same_output(population, 0, images())
    gate = 2 * WIDTH if style is BlendStyle.GATE else 0
    host = count_parameters(tiny_host())
    assert count_parameters(plain) == host + parameters + gate
    attention = 2 if name == "attention" else 0
    assert called(plain, operator.mul) == attention + (2 if gate else 0)
    constants = [a for n in plain.graph.nodes for a in n.args if isinstance(a, float)]
    assert constants == []


def test_multiply_keeps_its_alpha_behind_the_tanh():
    plain = assert_same_output(grown(("r0c1", "norm", BlendStyle.MULTIPLY, 0.5)), 0, images())
    assert [a for n in plain.graph.nodes for a in n.args if isinstance(a, float)] == [0.5]


def test_identities_are_gone():
    host = UserCNN(
        4, (0,), body=chain(nn.Conv2d(1, 4, 1), nn.Identity()), idle=nn.Identity(),
        head=chain(nn.Dropout(0.0), nn.Flatten(), nn.Linear(256, 3)),
    )  # fmt: skip
    population = planted(
        lambda: copy.deepcopy(host), ["r0c0"], ("r0c0", "t_line", BlendStyle.ADD, 1)
    )
    plain = assert_same_output(population, 0, images())
    found = {type(module) for module in plain.modules()}
    assert not found & {nn.Identity, nn.Dropout}


@pytest.mark.parametrize(
    ("name", "unmerged", "merged"),
    [
        ("t_line", WIDTH**2, WIDTH**2),
        ("t_wide", 2 * WIDTH**2, WIDTH**2),
    ],
)
def test_linear_seed_becomes_one_layer_with_the_host_path_in_it(name, unmerged, merged):
    population = grown(("r0c1", name, BlendStyle.ADD, 0.6))
    plain = assert_same_output(population, 0, images())
    host = tiny_host()
    assert called(plain, operator.add) == 0
    assert count_parameters(plain) == count_parameters(host) + merged
    assert population.parameters_E()[0] == count_parameters(host) + unmerged + WIDTH
    assert count_macs(plain, images()) == count_macs(host, images()) + merged * AREA


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("t_narrow", 2 * WIDTH * WIDTH // 4),  # one layer would cost 64 instead of 32
        ("t_line_3x3", 9 * WIDTH**2),
        ("t_depthwise", 9 * WIDTH),
        ("t_three_three", 18 * WIDTH**2),  # the border pads the activation between
    ],
)
def test_linear_seed_stays_apart_where_merging_costs_or_changes(name, parameters):
    plain = assert_same_output(grown(("r0c1", name, BlendStyle.ADD, 0.6)), 0, images())
    assert called(plain, operator.add) == 1
    assert count_parameters(plain) == count_parameters(tiny_host()) + parameters


@pytest.mark.parametrize("channels", [4, 8])
@pytest.mark.parametrize("columns_first", [True, False])
def test_layers_that_mix_columns_and_channels_stay_apart(channels, columns_first):
    layers = [nn.Linear(4, 4), nn.Conv2d(channels, channels, 1)]
    seed = nn.Sequential(*(layers if columns_first else reversed(layers)))
    plain = fx.symbolic_trace(Residual(seed))
    x = torch.randn(2, channels, 4, 4)
    expected = plain(x)
    simplify(plain, ["seed."])
    plain.recompile()
    torch.testing.assert_close(plain(x), expected)
    assert called(plain, operator.add) == 1


class Residual(nn.Module):
    def __init__(self, seed: nn.Module) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.seed(x)


@pytest.mark.parametrize("style", [BlendStyle.MULTIPLY, BlendStyle.GATE])
def test_linear_seed_stays_apart_where_the_blend_is_not_linear(style):
    plain = assert_same_output(grown(("r0c1", "t_line", style, 0.6)), 0, images())
    assert called(plain, operator.add) >= 1


@pytest.mark.parametrize("rank", RANKS)
def test_low_rank_seed_is_merged_only_from_half_the_width_on(rank):
    population = planted(vector_host, ["r0c0"], ("r0c0", f"t_lora{rank}", BlendStyle.ADD, 0.7))
    x = torch.randn(5, 6)
    plain = assert_same_output(population, 0, x)
    host = vector_host()
    weights = WIDTH**2 if rank >= WIDTH // 2 else 2 * rank * WIDTH
    assert called(plain, operator.add) == (0 if rank >= WIDTH // 2 else 1)
    assert count_parameters(plain) == count_parameters(host) + weights
    assert count_macs(plain, x) == count_macs(host, x) + weights


# ---- its own -----------------------------------------------------------------------------------


def mixed() -> Population:
    return grown(
        ("r0c0", "attention", BlendStyle.GATE, 1.0),
        ("r1c0", "t_line", BlendStyle.ADD, 0.5),
        ("r0c1", "conv_heavy", BlendStyle.MULTIPLY, 0.3),
        ("r0c2", "conv_light", BlendStyle.ADD, 0.8),
        members=2,
    )


def test_plain_model_trains_and_every_parameter_does_something():
    plain = mixed().member(0).to_plain().train()
    x, y = (value[0] for value in batch(1, size=16))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = F.cross_entropy(plain(x), y)
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in plain.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_plain_model_and_population_train_apart():
    population = mixed()
    stores = (population.network.host, *population.network.banks.values())
    values = [store.flat_EP.detach().clone() for store in stores]
    plain = population.member(1).to_plain()
    x, y = (value[0] for value in batch(1))
    F.cross_entropy(plain(x), y).backward()
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    assert all(torch.equal(s.flat_EP, v) for s, v in zip(stores, values, strict=True))
    kept = {name: value.clone() for name, value in plain.state_dict().items()}
    population.train_batch(*batch(2))
    assert all(torch.equal(value, kept[name]) for name, value in plain.state_dict().items())


def test_taking_it_leaves_member_and_generators_alone():
    population = mixed()
    model = population.member(0).train()
    before, state = model(images()), torch.get_rng_state()
    plain = model.to_plain()
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not plain.training
    assert torch.equal(model(images()), before)
