"""Hosts: a chain of segments, sane at birth; costs counted against cases counted by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina import (
    CNNHost,
    MLPHost,
    Population,
    PopulationConfig,
    ResNetHost,
    SignalHost,
    TransformerHost,
)
from esper.kasmina.layers.counting import count_macs, count_parameters
from esper.kasmina.layers.sequence import CausalAttention, FeedForward
from esper.leyline import BlendStyle, HostProtocol, SeedStage
from support import bring_to, make_population, refused

HOSTS = [
    {"num_classes": 10, "in_channels": 3, "base_channels": 8},
    {"num_classes": 10, "in_channels": 1, "base_channels": 2, "kernel_size": 1},
    {"num_classes": 10, "in_channels": 3, "base_channels": 1, "kernel_size": 1},
    {"num_classes": 10, "in_channels": 3, "base_channels": 2, "kernel_size": 1, "pool_layers": 0},
    {"num_classes": 100, "in_channels": 3, "n_blocks": 5, "base_channels": 16},
    {"num_classes": 10, "in_channels": 3, "n_blocks": 4, "pool_layers": 2, "max_channels": 16},
]


TRANSFORMERS = [
    {"vocab": 16, "n_embd": 8, "n_head": 2, "n_layer": 1, "block_size": 32},
    {"vocab": 256, "n_embd": 64, "n_head": 4, "n_layer": 2, "block_size": 32},
    {"vocab": 16, "n_embd": 128, "n_head": 4, "n_layer": 1, "block_size": 16},
    {"vocab": 65, "n_embd": 192, "n_head": 6, "n_layer": 6, "block_size": 16},
]
MLPS = [
    {"in_features": 8, "num_classes": 10, "width": 2, "n_layers": 1},
    {"in_features": 64, "num_classes": 10, "width": 32, "n_layers": 2},
    {"in_features": 784, "num_classes": 100, "width": 128, "n_layers": 6},
]
SIGNALS = [
    {"num_classes": 10, "in_channels": 1, "base_channels": 2},
    {"num_classes": 10, "in_channels": 6, "n_blocks": 5, "base_channels": 16, "kernel_size": 5},
    {"num_classes": 10, "in_channels": 3, "n_blocks": 4, "pool_layers": 2, "max_channels": 16},
]
RESNETS = [
    {"num_classes": 10, "in_channels": 3},
    {"num_classes": 10, "in_channels": 3, "norm": "group"},
    {"num_classes": 100, "in_channels": 1, "blocks_per_stage": 3, "base_channels": 4},
    {"num_classes": 10, "in_channels": 3, "blocks_per_stage": 3, "norm": "group"},
]
CASES = [
    *[(SignalHost, settings) for settings in SIGNALS],
    *[(ResNetHost, settings) for settings in RESNETS],
    *[(CNNHost, settings) for settings in HOSTS],
    *[(TransformerHost, settings) for settings in TRANSFORMERS],
    *[(MLPHost, settings) for settings in MLPS],
]


def inputs(host: nn.Module, settings: dict[str, int], samples: int) -> tuple[Tensor, int]:
    """A batch such a host takes, and how many choices it has."""
    if isinstance(host, TransformerHost):
        shape = (samples, settings["block_size"])
        return torch.randint(0, settings["vocab"], shape), settings["vocab"]
    if isinstance(host, MLPHost):
        return torch.randn(samples, settings["in_features"]), settings["num_classes"]
    space = (40,) if isinstance(host, SignalHost) else (16, 16)
    return torch.randn(samples, settings["in_channels"], *space), settings["num_classes"]


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_first_loss_is_within_10_percent_of_chance(make, settings):
    with forked_rng(0):
        host = make(**settings)
        x, choices = inputs(host, settings, 256 if make is not TransformerHost else 32)
        logits = host(x).flatten(0, -2)
        y = torch.randint(0, choices, (len(logits),))
    loss = F.cross_entropy(logits, y).item()
    assert abs(loss / math.log(choices) - 1) < 0.1


@pytest.mark.parametrize(("make", "settings"), CASES)
def test_forward_equals_the_chain_and_slots_sit_where_they_say(make, settings):
    with forked_rng(0):
        host = make(**settings).eval()
        x, choices = inputs(host, settings, 2)
    assert isinstance(host, HostProtocol)
    h = x
    widths = {}
    for index, segment in enumerate(host.segments()):
        h = segment(h)
        widths[index] = h.shape[1 if make in (CNNHost, SignalHost, ResNetHost) else -1]
    assert torch.equal(h, host(x))
    assert h.shape == (*(x.shape if make is TransformerHost else x.shape[:1]), choices)
    specs = host.injection_specs()
    assert [s.position for s in specs] == sorted({s.position for s in specs})
    for spec in specs:
        assert widths[spec.position] == spec.channels


@pytest.mark.parametrize(
    ("host", "surfaces"),
    [
        (CNNHost(n_blocks=2), ["pre_pool", "post_pool"] * 2),
        (TransformerHost(n_layer=2), ["after_attention", "after_mlp"] * 2),
        (MLPHost(n_layers=2), ["after_block"] * 2),
        (SignalHost(n_blocks=2), ["pre_pool", "post_pool"] * 2),
        (ResNetHost(n_stages=2), ["after_block", "end_of_stage"] * 2),
    ],
)
def test_rows_are_surfaces(host, surfaces):
    specs = host.injection_specs()
    assert [s.surface for s in specs] == surfaces
    row_of = {s.surface: int(s.slot_id[1]) for s in specs}
    assert [int(s.slot_id[1]) for s in specs] == [row_of[s] for s in surfaces]
    assert sorted(row_of.values()) == list(range(len(row_of)))


def test_transformer_slots_stand_behind_what_their_surface_names():
    host = TransformerHost(n_layer=3)
    for spec in host.injection_specs():
        expected = CausalAttention if spec.surface == "after_attention" else FeedForward
        assert isinstance(host.segments()[spec.position].inner, expected), spec.slot_id


def test_parameters_of_the_known_hosts():
    """Counted by hand: convolutions without bias, two norm parameters a channel, linear head."""
    baseline = 9 * (3 * 8 + 8 * 16 + 16 * 32) + 2 * (8 + 16 + 32) + 32 * 10 + 10
    assert count_parameters(CNNHost(10, 3, 3, 8)) == baseline == 6418
    impaired = (3 * 1 + 1 * 2 + 2 * 4) + 2 * (1 + 2 + 4) + 4 * 10 + 10
    assert count_parameters(CNNHost(10, 3, 3, 1, kernel_size=1)) == impaired == 77


def test_channels_double_up_to_the_limit():
    assert CNNHost(n_blocks=5, base_channels=4, max_channels=12).channels == (4, 8, 12, 12, 12)
    assert CNNHost(n_blocks=5, base_channels=4).channels == (4, 8, 16, 32, 64)
    line = refused(lambda: CNNHost(base_channels=4, max_channels=3))
    assert "max_channels=3: must be base_channels=4 or more" in line


def test_sizes_a_host_cannot_have_are_named():
    assert "SignalHost kernel_size=4: must be odd" in refused(lambda: SignalHost(kernel_size=4))
    line = refused(lambda: SignalHost(base_channels=4, max_channels=3))
    assert "SignalHost max_channels=3: must be base_channels=4 or more" in line
    assert "ResNetHost n_stages=0: must be 1 or more" in refused(lambda: ResNetHost(n_stages=0))
    assert "unknown norm 'layer' of ResNetHost" in refused(lambda: ResNetHost(norm="layer"))


def test_parameters_and_macs_of_a_signal_host_counted_by_hand():
    """Length 11, pooled to 6 and 3, rounding up."""
    host = SignalHost(num_classes=5, in_channels=2, n_blocks=3, base_channels=4)
    convolutions = [3 * 2 * 4, 3 * 4 * 8, 3 * 8 * 16]
    assert count_parameters(host) == sum(convolutions) + 2 * 28 + 16 * 5 + 5
    macs = sum(c * length for c, length in zip(convolutions, (11, 6, 3), strict=True)) + 16 * 5
    assert count_macs(host, torch.zeros(7, 2, 11)) == macs


@pytest.mark.parametrize(("blocks", "millions"), [(1, 12.24), (2, 26.39), (3, 40.55)])
def test_resnets_have_the_costs_of_their_depth(blocks, millions):
    """Counted by hand: ResNet-8, -14 and -20, shortcuts without parameters."""
    host = ResNetHost(blocks_per_stage=blocks)
    widths = (16, 32, 64)
    convolutions = [(3, 16, 1024)]
    for width, before, area in zip(widths, (16, 16, 32), (1024, 256, 64), strict=True):
        convolutions += [(before, width, area)] + [(width, width, area)] * (2 * blocks - 1)
    assert len(convolutions) + 1 == 6 * blocks + 2
    weights = sum(9 * c_in * c_out for c_in, c_out, _ in convolutions)
    norms = 2 * sum(c_out for _, c_out, _ in convolutions)
    assert count_parameters(host) == weights + norms + 64 * 10 + 10
    macs = sum(9 * c_in * c_out * area for c_in, c_out, area in convolutions) + 64 * 10
    assert count_macs(host, torch.zeros(2, 3, 32, 32)) == macs
    assert macs / 1e6 == pytest.approx(millions, abs=0.01)


def test_twins_in_every_slot_turn_resnet_8_into_resnet_20():
    """The costs of ResNet-20 but for the scales; at scale one a stage is its block three times."""
    config = PopulationConfig(executor="vmap")
    host = lambda: ResNetHost(norm="group")  # noqa: E731
    slots = [spec.slot_id for spec in ResNetHost().injection_specs()]
    population = Population(host, slots, ["twin"], 1, config=config)
    assert population.network.fits_SK.all()
    for slot in slots:
        population.plant([0], slot, "twin")
    x = torch.randn(1, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    population.forward(x)
    deep, scales = ResNetHost(blocks_per_stage=3, norm="group"), 2 * (16 + 32 + 64)
    assert population.parameters_E().tolist() == [count_parameters(deep) + scales]
    assert population.macs_E().tolist() == [count_macs(deep, x[0])]
    for bank in population.network.banks.values():
        bank.named(bank.flat_EP.detach())["scale.gamma"].fill_(1.0)
    member = population.member(0)
    deep.load_state_dict(_deepened(member))
    torch.testing.assert_close(member(x[0]), deep.eval()(x[0]), rtol=1e-4, atol=1e-5)


def _deepened(member: nn.Module) -> dict[str, Tensor]:
    """The state of a ResNet-20 whose further blocks are the member's seeds."""
    state = {n: v for n, v in member.host.state_dict().items() if not n.startswith("blocks.")}
    for stage in range(3):
        parts = [member.host.blocks[stage]]
        parts += [member.seeds[f"r{row}c{stage}"].delta.segment for row in range(2)]
        for index, part in enumerate(parts):
            at = f"blocks.{3 * stage + index}"
            state |= {f"{at}.{n}": v for n, v in part.state_dict().items()}
    return state


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_resnet_runs_one_image_and_odd_sizes_under_both_executors(norm):
    x = torch.randn(2, 1, 1, 7, 9, generator=torch.Generator().manual_seed(0))
    outs = []
    for executor in ("vmap", "loop"):
        config = PopulationConfig(executor=executor)
        host = lambda: ResNetHost(4, 1, base_channels=4, norm=norm)  # noqa: E731
        population = Population(host, ["r0c1"], ["twin"], 2, config=config)
        population.plant([1], "r0c1", "twin")
        stats = population.train_batch(x, torch.tensor([[1], [2]]))
        assert torch.isfinite(stats.loss_E).all()
        outs.append(population.forward(x))
    torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-5)


def test_batch_norm_under_autocast_is_vmapped_and_keeps_its_statistics_in_float32():
    config = PopulationConfig(executor="vmap")
    host = lambda: ResNetHost(4, 1, base_channels=4)  # noqa: E731
    population = Population(host, ["r0c1"], ["twin"], 2, config=config)
    population.plant([0, 1], "r0c1", "twin")
    x = torch.randn(2, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        loss_E = population.train_batch(x, torch.ones(2, 4, dtype=torch.int64)).loss_E
    assert torch.isfinite(loss_E).all()
    means = population.network.host.fixed["stem.norm.running_mean"]
    assert means.dtype == torch.float32
    assert means.any(dim=1).all()


def test_parameters_and_macs_of_a_transformer_counted_by_hand():
    """Tied head counted once; norms 2 C; attention 4 C^2 + C; MLP 8 C^2 + 5 C."""
    vocab, width, layers, block = 13, 8, 3, 10
    host = TransformerHost(vocab, width, n_head=2, n_layer=layers, block_size=block)
    layer = (2 * width + 4 * width**2 + width) + (2 * width + 8 * width**2 + 5 * width)
    by_hand = vocab * width + block * width + layers * layer + 2 * width
    assert count_parameters(host) == by_hand == 2744
    time = 7
    attention = time * 4 * width**2 + 2 * time**2 * width
    macs = layers * (attention + time * 8 * width**2) + time * width * vocab
    assert count_macs(host, torch.zeros(4, time, dtype=torch.int64)) == macs


def test_macs_of_torchs_fused_attention_are_counted_as_its_products():
    """Its fast path in eval mode, and the kernel of a CPU, are unknown to torch's own counter."""
    time, width = 6, 8
    layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
    macs = time * (4 * width**2 + 2 * width * 2 * width) + 2 * time**2 * width
    assert count_macs(layer, torch.zeros(3, time, width)) == macs
    assert torch.backends.mha.get_fastpath_enabled()


def test_parameters_and_macs_of_an_mlp_counted_by_hand():
    """Linear maps without bias, norms 2 C, a head with bias."""
    host = MLPHost(in_features=9, num_classes=5, width=12, n_layers=3)
    assert count_parameters(host) == (9 * 12 + 2 * 12 * 12) + 3 * 2 * 12 + 12 * 5 + 5
    assert count_macs(host, torch.zeros(4, 9)) == 9 * 12 + 2 * 12 * 12 + 12 * 5


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


def test_hosts_of_images_and_signals_name_their_parameters_alike():
    settings = {"num_classes": 5, "in_channels": 2, "n_blocks": 2, "pool_layers": 1}
    image, signal = (make(**settings).state_dict() for make in (CNNHost, SignalHost))
    assert list(image) == list(signal)
    kernels = [name for name, value in image.items() if value.ndim == 4]
    assert kernels == [name for name, value in signal.items() if value.ndim == 3]
    assert kernels == ["blocks.0.conv.weight", "blocks.1.conv.weight"]
