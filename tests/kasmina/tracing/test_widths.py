"""The user's model at other widths: shapes, sizes, weights, and what cannot be scaled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.layers.counting import Size, count_parameters, count_training_macs
from esper.kasmina.tracing import (
    ScaledModel,
    Scaling,
    planted_model,
    scaled_model,
)
from esper.leyline.errors import EsperError
from user_models import CASES, GPT

SAMPLES = 4
MANY = ("sequential", "resnet", "densenet", "vit", "gpt", "conv1d", "tabular", "dict_input")
"""Scaled by all factors; the others only by the first and the last."""
QUICK = ("careful", "channels_last", "lstm", "tied")
SIMILAR = ("in_place", "unused", "buffers", "python_random", "dict_output", "two_inputs")
FACTORS = (0.5, 1.5, 2.0, 3.0)
IMPOSSIBLE = ("frozen", "functional_dropout")
NAMES = [name for name in CASES if name not in IMPOSSIBLE + SIMILAR]


@cache
def example(name: str) -> Any:
    with forked_rng(1):
        return CASES[name].example(SAMPLES)


@cache
def scaled(name: str, factor: float) -> ScaledModel:
    case = CASES[name]
    return scaled_model(case.build, example(name), factor, case.output, slots=2)


def call(model: nn.Module, raw: Any) -> Any:
    if isinstance(raw, Tensor):
        return model(raw.clone())
    return model(**raw) if isinstance(raw, dict) else model(*raw)


def output_shape(name: str, model: nn.Module) -> tuple[int, ...]:
    with torch.no_grad():
        out = call(model.eval(), example(name))
    out = out[CASES[name].output] if isinstance(out, dict) else out
    return tuple((out[0] if isinstance(out, tuple) else out).shape)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def built(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    with forked_rng(seed):
        return factory()


def width_ratio(model: nn.Module, base: nn.Module) -> float:
    """How many times as wide its layers are, in the middle."""
    pairs = zip(model.parameters(), base.parameters(), strict=True)
    sizes = [pair for one, two in pairs for pair in zip(one.shape, two.shape, strict=True)]
    return median(new / old for new, old in sizes if new != old)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_outputs_stay_and_sizes_follow_the_factor(name: str):
    base = CASES[name].build()
    sizes = [count(base)]
    for factor in FACTORS if name in MANY else FACTORS[::3]:
        found = scaled(name, factor)
        model = found.factory()
        assert output_shape(name, model) == output_shape(name, base)
        assert shapes(model).keys() == shapes(base).keys()
        assert width_ratio(model, base) == pytest.approx(factor, rel=0.05)
        sizes.insert(-1 if factor < 1 else len(sizes), count(model))
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("name", ["lstm", "encoder", "careful"])
def test_factor_one_has_the_shapes_of_the_model(name: str):
    found = scaled_model(CASES[name].build, example(name), 1.0, CASES[name].output, slots=1)
    assert shapes(found.factory()) == shapes(CASES[name].build())


@pytest.mark.parametrize("name", ["resnet", "gpt", "tabular"])
def test_the_size_is_known_before_the_trace(name: str):
    found = scaled(name, 1.5)
    network = planted_model(found.host, {}, 0)
    sample = found.host.inputs.batch(example(name), 1)
    macs = count_training_macs(network, lambda: found.host.inputs.call(network, sample))
    assert found.size == Size(count_parameters(network), *macs)


def test_several_factors_give_what_each_gives_alone():
    scaling = Scaling(CASES["gpt"].build, example("gpt"), slots=2)
    wide = [scaling.at(factor) for factor in (3.0, 1.5, 1.5001)]
    alone = scaled("gpt", 1.5)
    for found in wide[1:]:
        assert found.size == alone.size
        mine, theirs = (built(one.factory, 7).state_dict() for one in (found, alone))
        assert all(torch.equal(mine[key], value) for key, value in theirs.items())
    assert wide[0].size.params > wide[1].size.params


@pytest.mark.parametrize(("name", "as_instance"), [("lstm", True), ("lstm", False), ("gpt", False)])
def test_weights_come_from_the_seed(name: str, as_instance: bool):
    factory = scaled(name, 3.0).factory
    if as_instance:
        factory = scaled_model(CASES[name].build(), example(name), 1.5).factory
    first, same, other = (dict(built(factory, seed).named_parameters()) for seed in (1, 1, 2))
    for key, weight in first.items():
        torch.testing.assert_close(weight, same[key], rtol=0, atol=0)
        constant = bool((weight == weight.flatten()[0]).all())
        assert constant or not torch.equal(weight, other[key]), key


def test_weights_are_drawn_from_torchs_defaults():
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 50), nn.Linear(50, 3))
    wide = scaled_model(model, torch.randn(4, 100), 4).factory()
    assert float(wide[2].weight.detach().abs().max()) == pytest.approx(200**-0.5, rel=0.01)


def test_an_instance_is_not_changed():
    model = CASES["gpt"].build().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    factory = scaled_model(model, example("gpt"), 2.0).factory
    assert torch.equal(torch.get_rng_state(), state)
    factory()
    assert model.training
    assert shapes(model) == shapes(CASES["gpt"].build())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.h[0].attn.width == 16
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_ties_and_attributes_follow():
    model = scaled("gpt", 2.0).factory()
    assert model.wte.weight is model.lm_head.weight
    assert model.h[0].attn.width == 32
    assert model.h[0].attn.heads == 4
    assert scaled("llama", 3.0).factory().model.layers[0].heads == 12  # rotary tables fix the size
    tied = scaled("tied", 3.0).factory()
    assert tied.a.weight is tied.b.weight


@pytest.mark.parametrize("name", ["dict_input", "conv1d"])
def test_network_of_a_scaled_model_trains(name: str):
    host = scaled(name, 1.5).host
    one, other = (planted_model(host, {}, key) for key in (0, 1))
    out = host.inputs.call(one, host.inputs.values(example(name)))
    out.square().sum().backward()
    assert all(p.grad is not None for p in one.parameters())
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)  # each network has weights of its own


# ---- more ways to use a width ------------------------------------------------------------------


class Grouped(nn.Module):
    """Groups, group norm, a learned scale and a gate of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.narrow = nn.Conv2d(16, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.norm = nn.GroupNorm(4, 8)
        self.wide = nn.Conv2d(8, 16, 1)
        self.gate = nn.Conv2d(16, 1, 1)
        self.gamma = nn.Parameter(torch.full((16, 1, 1), 0.1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.wide(F.relu(self.norm(self.grouped(self.narrow(x)))))
        x = x + self.gamma * y * torch.sigmoid(self.gate(x))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Sizes of heads as attributes, a table of sines, an output tied to the embedding."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16)
        self.num_heads, self.head_dim, self.all_head_size = heads, 16 // heads, 16
        self.qkv = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.register_buffer("table", torch.randn(1, 50, 16))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.table[:, : x.size(1)]
        b, t, _ = x.shape
        q, k, v = (
            layer(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2) for layer in self.qkv
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = self.norm(x + y.reshape(b, t, self.all_head_size))
        return x @ self.embed.weight.T


class Mixer(nn.Module):
    """Layers over positions, whose number belongs to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 12, 2, 2)
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(x)).mean(1))


class Latents(nn.Module):
    """Learned queries, a bare matrix, keys of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 6, 8))
        self.cross = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)
        self.mix = nn.Parameter(torch.randn(8, 8) * 0.1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.latents.expand(x.size(0), -1, -1)
        h = h + self.cross(h, x, x)[0]
        return self.head((h @ self.mix).mean(1))


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 2, 1), nn.PReLU(12), nn.Flatten(), nn.Linear(12 * 16, 10), nn.ReLU(),
        nn.Linear(10, 12 * 16), nn.Unflatten(1, (12, 4, 4)), nn.InstanceNorm2d(12, affine=True),
        nn.ConvTranspose2d(12, 3, 2, 2),
    )  # fmt: skip


def shuffled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 12, 3, padding=1),
        nn.PixelShuffle(2), nn.Conv2d(3, 3, 3, padding=1),
    )  # fmt: skip


IMAGES = torch.randn(SAMPLES, 3, 8, 8)
TOKENS = torch.randint(0, 13, (SAMPLES, 7))
MORE: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "grouped": (Grouped, IMAGES),
    "attention": (lambda: Attention(4), TOKENS),
    "one_head": (lambda: Attention(1), TOKENS),
    "mixer": (Mixer, IMAGES),
    "latents": (Latents, torch.randn(SAMPLES, 5, 4)),
    "autoencoder": (autoencoder, IMAGES),
    "shuffled": (shuffled, IMAGES),
    "long": (lambda: LongGPT(13, 16, 16), torch.randint(0, 13, (SAMPLES, 16))),
    "gru": (lambda: GRUModel(), torch.randn(SAMPLES, 5, 4)),
}


class LongGPT(GPT):
    """As many positions as channels; a channels-first table of positions."""

    def __init__(self, vocab: int, length: int, width: int) -> None:
        super().__init__(vocab, length, width, 1)
        self.length = length
        self.table = nn.Parameter(torch.randn(1, width, 2 * width) * 0.02)

    def forward(self, idx: Tensor) -> Tensor:  # type: ignore[override]
        x = self.wte(idx)
        x = (x.transpose(1, 2) + self.table[:, :, : x.size(1)]).transpose(1, 2)
        return self.lm_head(self.ln_f(self.h[0](x)))


class GRUModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


@pytest.mark.parametrize(
    "name",
    [
        n if n in ("autoencoder", "shuffled") else pytest.param(n, marks=pytest.mark.slow)
        for n in MORE
    ],
)
def test_other_layers(name: str):
    factory, x = MORE[name]
    base = factory()
    sizes = []
    for factor in (0.5, 1.0, 1.3, 2.0):
        found = scaled_model(factory, x, factor, slots=1)
        sizes.append(count(found.factory()))
        assert found.factory().eval()(x).shape == base.eval()(x).shape
    assert sizes == sorted(set(sizes))
    assert sizes[1] == count(base)


def test_bare_tensors_keep_their_distribution():
    model = scaled_model(Grouped, IMAGES, 2).factory()
    torch.testing.assert_close(model.gamma, torch.full((32, 1, 1), 0.1))
    vit = scaled("vit", 3.0).factory()
    assert vit.pos_embed.shape == (1, 5, 48)
    assert 0.01 < float(vit.pos_embed.detach().std()) < 0.03
    wide = scaled_model(lambda: Attention(4), TOKENS, 2).factory()
    assert wide.table.shape == (1, 50, 32)


def test_frozen_layers_stay():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5))
    model[0].requires_grad_(False)
    found = scaled_model(model, torch.randn(4, 6), 2).factory()
    assert torch.equal(found[0].weight, model[0].weight)
    assert not found[0].weight.requires_grad
    assert found[2].weight.shape == (24, 8)


def test_a_residual_of_the_input_keeps_its_width():
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 12), nn.Linear(12, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(x + self.b(F.relu(self.a(x))))

    model = scaled_model(Denoiser, torch.randn(4, 6), 2).factory()
    assert [tuple(p.shape) for p in (model.a.weight, model.b.weight)] == [(24, 6), (6, 24)]


# ---- what cannot be scaled ---------------------------------------------------------------------


class Computed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.b = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


@pytest.mark.parametrize(
    ("factory", "x", "message"),
    [
        (CASES["frozen"].build, IMAGES, "FrozenTrunk has no inner width"),
        (lambda: nn.Linear(6, 5), torch.randn(4, 6), "Linear has no inner width"),
        (CASES["functional_dropout"].build, IMAGES, "view in FunctionalDropout"),
        (Computed, torch.randn(4, 6), "a has a weight that is computed from others"),
        (CASES["tabular"].build, torch.randn(4, 7), "TabularMLP fails on the example"),
    ],
)
@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_impossible(factory: Callable[[], nn.Module], x: Tensor, message: str, factor: float):
    with pytest.raises(EsperError, match=message) as caught:
        scaled_model(factory, x, factor)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_factor_must_be_positive(factor: float):
    with pytest.raises(EsperError, match="factor="):
        scaled_model(CASES["tabular"].build, example("tabular"), factor)
