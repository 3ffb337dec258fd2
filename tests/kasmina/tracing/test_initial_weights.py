"""A resized model is initialised as the given one was."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina.tracing import scaled_model
from esper.kasmina.tracing.initial_weights import Initialisation
from esper.kasmina.tracing.resizing import Resizer, Sizes

VOCAB = 256
TOKENS = torch.randint(0, VOCAB, (4, 8), generator=torch.Generator().manual_seed(0))
FLAT = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
Initialiser = Callable[[Tensor], object]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TiedGPT(nn.Module):
    """Initialised as GPT-2: 0.02, residual projections smaller, tied to the embedding."""

    def __init__(self, layers: int = 2, width: int = 32) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, width)
        self.positions = nn.Parameter(torch.randn(1, 8, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                small = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if small else 1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.wte(tokens) + self.positions)))


def loss(model: nn.Module) -> float:
    with torch.no_grad():
        return float(F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flip(0).flatten()))


def built(factory: Callable[[], nn.Module], seed: int = 0) -> Any:
    with forked_rng(seed):
        return factory()


def deviation(parameter: Tensor) -> float:
    return float(parameter.detach().std(correction=0))


@pytest.mark.parametrize(("as_instance", "factor"), [(True, 2.0), (False, 0.5), (False, 4.0)])
def test_a_tied_gpt_starts_at_the_loss_it_was_given_with(as_instance: bool, factor: float):
    given = built(TiedGPT)
    wide = built(scaled_model(given if as_instance else TiedGPT, TOKENS, factor).factory)
    assert wide.wte.weight is wide.head.weight
    assert wide.wte.weight.shape == (VOCAB, 32 * factor)
    assert loss(wide) == pytest.approx(loss(given), rel=0.05)
    assert loss(given) == pytest.approx(math.log(VOCAB), rel=0.05)


@pytest.mark.parametrize("layers", [2, 3])
def test_deviations_of_a_gpt_do_not_depend_on_the_width(layers: int):
    """Of two layers, 0.01 at four times the fan-in looks like a law of the fan-in."""
    wide = built(scaled_model(built(lambda: TiedGPT(layers)), TOKENS, 2.0).factory)
    block, small = wide.blocks[0], 0.02 / math.sqrt(2 * layers)
    for parameter in (wide.wte.weight, wide.positions, block.qkv.weight, block.up.weight):
        assert deviation(parameter) == pytest.approx(0.02, rel=0.1)
    for parameter in (block.proj.weight, block.down.weight):
        assert deviation(parameter) == pytest.approx(small, rel=0.1)
    assert not block.up.bias.any()
    assert (block.norm1.weight == 1).all()


def linears(initialise: Initialiser) -> nn.Module:
    model = nn.Sequential(
        nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)
    )
    for layer in model[::2]:
        initialise(layer.weight)
    return model


def convolutions(initialise: Initialiser) -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    for layer in (model[0], model[2]):
        initialise(layer.weight)
    return model


def fans(weight: Tensor) -> tuple[int, int]:
    area = math.prod(weight.shape[2:])
    return weight.shape[1] * area, weight.shape[0] * area


NEW_SIZES: dict[Callable[[Initialiser], nn.Module], dict[str, Sizes]] = {
    linears: {
        "0": {"in_features": 40, "out_features": 96},
        "2": {"in_features": 96, "out_features": 192},
        "4": {"in_features": 192, "out_features": 5},
    },
    convolutions: {
        "0": {"in_channels": 3, "out_channels": 48},
        "2": {"in_channels": 48, "out_channels": 96},
    },
}
"""Three times the width."""
RULES: dict[str, tuple[Initialiser, Callable[[int, int], float]]] = {
    "torch": (lambda w: None, lambda i, o: (3 * i) ** -0.5),
    "kaiming_normal": (nn.init.kaiming_normal_, lambda i, o: (2 / i) ** 0.5),
    "kaiming_uniform": (nn.init.kaiming_uniform_, lambda i, o: (2 / i) ** 0.5),
    "xavier_uniform": (nn.init.xavier_uniform_, lambda i, o: (2 / (i + o)) ** 0.5),
    "xavier_normal": (nn.init.xavier_normal_, lambda i, o: (2 / (i + o)) ** 0.5),
    "kaiming_fan_out": (
        lambda w: nn.init.kaiming_normal_(w, mode="fan_out"),
        lambda i, o: (2 / o) ** 0.5,
    ),
    "normal_0.02": (lambda w: nn.init.normal_(w, std=0.02), lambda i, o: 0.02),
    "trunc_normal_0.03": (lambda w: nn.init.trunc_normal_(w, std=0.03), lambda i, o: 0.03),
    "own_gain": (
        lambda w: nn.init.normal_(w, std=0.37 * fans(w)[0] ** -0.5),
        lambda i, o: 0.37 * i**-0.5,
    ),
}


@pytest.mark.parametrize("draws", [1, 8])
@pytest.mark.parametrize("model", [linears, convolutions])
@pytest.mark.parametrize("rule", RULES)
def test_weights_follow_the_initialisers_rule_at_the_new_shape(
    rule: str, model: Callable[[Initialiser], nn.Module], draws: int
):
    initialise, expected = RULES[rule]
    given = [built(lambda: model(initialise), seed) for seed in range(draws)]
    wide = copy.deepcopy(given[0])
    resizer = Resizer(wide, Initialisation(given, [], keep=draws > 1))
    with forked_rng(5):
        for path, sizes in NEW_SIZES[model].items():
            resizer.layer(path, sizes)
    for path in NEW_SIZES[model]:
        weight = wide.get_submodule(path).weight
        found = deviation(weight)
        assert found == pytest.approx(expected(*fans(weight)), rel=0.15)
        if rule in ("torch", "kaiming_uniform", "xavier_uniform"):
            assert float(weight.detach().abs().max()) < 1.8 * found


class Kinds(nn.Module):
    """Constants, an orthogonal recurrence, a forget bias, embeddings, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        nn.init.orthogonal_(self.lstm.weight_hh_l0)
        nn.init.zeros_(self.lstm.bias_hh_l0)
        nn.init.zeros_(self.lstm.bias_ih_l0)
        with torch.no_grad():
            self.lstm.bias_ih_l0[16:32] = 1.0
        self.norm = nn.LayerNorm(16)
        nn.init.zeros_(self.norm.weight)
        self.layer_scale = nn.Parameter(torch.full((16,), 1e-6))
        self.rates = nn.Parameter(torch.arange(1.0, 4.0).log().repeat(16, 1))
        self.mix = nn.Linear(16, 16)
        nn.init.eye_(self.mix.weight)
        self.prior = nn.Linear(16, 5)
        nn.init.zeros_(self.prior.weight)
        nn.init.constant_(self.prior.bias, -2.2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.lstm(self.embed(tokens))[0][:, -1]
        x = x + self.layer_scale * self.norm(self.mix(x)) * self.rates.exp().sum(-1)
        return self.prior(x)


@pytest.mark.parametrize("as_instance", [True, False])
def test_constants_identities_and_orthogonal_weights_stay_what_they_are(as_instance: bool):
    tokens = TOKENS % 50
    wide = built(scaled_model(built(Kinds) if as_instance else Kinds, tokens, 2.0).factory, seed=3)
    assert not wide.norm.weight.any()
    assert not wide.prior.weight.any()
    assert (wide.prior.bias == -2.2).all()
    assert (wide.layer_scale == 1e-6).all()
    assert wide.layer_scale.shape == (32,)
    torch.testing.assert_close(wide.rates.data, torch.arange(1.0, 4.0).log().repeat(32, 1))
    assert torch.equal(wide.mix.weight, torch.eye(32))
    forget = [0.0] * 32 + [1.0] * 32 + [0.0] * 64
    assert wide.lstm.bias_ih_l0.tolist() == forget
    gram = wide.lstm.weight_hh_l0.T @ wide.lstm.weight_hh_l0
    torch.testing.assert_close(gram.detach(), torch.eye(32), atol=1e-5, rtol=0)
    assert deviation(wide.lstm.weight_ih_l0) == pytest.approx((3 * 32) ** -0.5, rel=0.1)
    assert deviation(wide.embed.weight[1:]) == pytest.approx(1.0, rel=0.1)
    assert not wide.embed.weight[0].any()


def test_draws_come_from_the_seed_and_leave_the_generators_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    factory = scaled_model(TiedGPT, TOKENS, 2.0).factory
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    one, same, other = (built(factory, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["blocks.0.up.weight"], other["blocks.0.up.weight"])


def test_a_trained_instance_keeps_its_deviations_by_the_fan_in():
    model = built(lambda: linears(lambda w: None))
    with torch.no_grad():
        for index, gain in ((0, 1.7), (2, 0.6), (4, 3.1)):
            model[index].weight.normal_(std=gain * model[index].in_features ** -0.5)
    given = copy.deepcopy(model.state_dict())
    wide = built(scaled_model(model, FLAT, 4.0).factory)
    for index, gain in ((0, 1.7), (2, 0.6), (4, 3.1)):
        expected = gain * wide[index].in_features ** -0.5
        assert deviation(wide[index].weight) == pytest.approx(expected, rel=0.15)
    assert all(torch.equal(value, given[name]) for name, value in model.state_dict().items())
