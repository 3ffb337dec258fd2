"""Every seed keeps its slot's shape, barely disturbs at birth, is alive, and learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.device.rng import forked_rng
from esper.kasmina import BlueprintRegistry
from esper.kasmina.layers.blending import Gate, blend
from esper.kasmina.layers.counting import count_macs, count_parameters
from esper.leyline import BlendStyle

NAMES = {
    "cnn": (
        "attention",
        "bottleneck",
        "conv_heavy",
        "conv_light",
        "conv_small",
        "depthwise",
        "norm",
    ),
    "transformer": (
        "attention",
        "full_attention",
        "lora",
        "lora_large",
        "mlp",
        "mlp_small",
        "norm",
    ),
    "mlp": ("gate", "mlp", "mlp_small", "norm"),
    "signal": (
        "attention",
        "bottleneck",
        "conv_dilated",
        "conv_heavy",
        "conv_light",
        "conv_small",
        "depthwise",
        "norm",
    ),
}
SPACE = {"cnn": (5, 5), "transformer": (7,), "mlp": (), "signal": (9,)}
IMAGE_LIKE = ("cnn", "signal")
CASES = [  # every blueprint at every width, the styles in turn
    (topology, name, list(BlendStyle)[(number + turn) % 3], width)
    for topology, names in NAMES.items()
    for number, name in enumerate(names)
    for least in [BlueprintRegistry.get(name, topology).min_width]
    for turn, width in enumerate(sorted({least, max(least, 3), max(least, 17), 128}))
]


class Slot(nn.Module):
    """A seed at alpha 1 in a slot, outside any population."""

    def __init__(self, topology: str, name: str, style: BlendStyle, width: int) -> None:
        super().__init__()
        self.delta = BlueprintRegistry.get(name, topology).factory(width)
        self.gate = Gate(width, topology) if style is BlendStyle.GATE else None
        self.style = style

    def forward(self, h: Tensor) -> Tensor:
        gate = self.gate(h) if self.gate is not None else None
        return blend(h, self.delta(h), 1.0, self.style, gate)


def activation(topology: str, width: int, samples: int = 6) -> Tensor:
    """What stands at a slot: an image after ReLU, a sequence or a vector."""
    if topology in IMAGE_LIKE:
        return torch.relu(torch.randn(samples, width, *SPACE[topology]))
    return torch.randn(samples, *SPACE[topology], width)


def slot_and_input(topology: str, name: str, style: BlendStyle, width: int) -> tuple[Slot, Tensor]:
    with forked_rng(width):
        return Slot(topology, name, style, width), activation(topology, width)


def toy_target(topology: str, h: Tensor) -> Tensor:
    """Something every blueprint can move towards: the activation with its channels rescaled."""
    if topology in IMAGE_LIKE:
        return h * torch.linspace(0.5, 1.5, h.shape[1]).view(-1, *[1] * (h.ndim - 2))
    return h * torch.linspace(0.5, 1.5, h.shape[-1])


@pytest.mark.parametrize(("topology", "name", "style", "width"), CASES)
def test_seed_keeps_the_shape_and_is_almost_identity_at_birth(topology, name, style, width):
    slot, h = slot_and_input(topology, name, style, width)
    out = slot(h)
    assert out.shape == h.shape
    part = {"cnn": h[..., :3], "transformer": h[:, :3], "mlp": h[:2], "signal": h[..., :3]}[
        topology
    ]
    assert slot(part).shape == part.shape, "any resolution, any length"
    assert (out - h).norm() / h.norm() < 0.12
    if (
        topology not in IMAGE_LIKE
    ):  # a residual stream starts small and grows: no scale can be relied on
        for scale in (0.03, 10.0):
            assert (slot(scale * h) - scale * h).norm() / (scale * h).norm() < 0.12


@pytest.mark.parametrize(("topology", "name", "style", "width"), CASES)
def test_every_parameter_is_alive_within_two_steps(topology, name, style, width):
    slot, h = slot_and_input(topology, name, style, width)
    optimiser = torch.optim.SGD(slot.parameters(), lr=0.05)
    alive: set[str] = set()
    for _ in range(2):
        optimiser.zero_grad()
        (slot(h) - toy_target(topology, h)).square().mean().backward()
        alive |= {n for n, p in slot.named_parameters() if p.grad is not None and p.grad.any()}
        optimiser.step()
    assert alive == {n for n, _ in slot.named_parameters()}


@pytest.mark.parametrize(
    ("topology", "name", "style", "width"), [case for case in CASES if 3 <= case[3] < 17]
)
def test_a_toy_loss_falls(topology, name, style, width):
    slot, h = slot_and_input(topology, name, style, width)
    optimiser = torch.optim.Adam(slot.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = (slot(h) - toy_target(topology, h)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("topology", list(NAMES))
def test_every_registered_blueprint_is_covered_here(topology):
    here = {*NAMES[topology], "twin"}  # twin is made from a host: test_twin.py
    assert BlueprintRegistry.names(topology) == tuple(sorted(here))


def hidden(width: int) -> int:
    return max(8, width // 4)


AREA, TIME, LENGTH = 25, 7, 9
BY_HAND = {
    ("signal", "norm"): (lambda c: 3 * c, lambda c: 0),
    ("signal", "conv_small"): (lambda c: c * c + c, lambda c: LENGTH * c * c),
    ("signal", "conv_light"): (lambda c: 3 * c * c + 3 * c, lambda c: LENGTH * 3 * c * c),
    ("signal", "conv_heavy"): (lambda c: 6 * c * c + 5 * c, lambda c: LENGTH * 6 * c * c),
    ("signal", "conv_dilated"): (lambda c: 6 * c * c + 5 * c, lambda c: LENGTH * 6 * c * c),
    ("signal", "depthwise"): (lambda c: c * c + 6 * c, lambda c: LENGTH * (3 * c + c * c)),
    ("signal", "bottleneck"): (
        lambda c: 2 * c * hidden(c) + 3 * hidden(c) ** 2 + 4 * hidden(c) + 3 * c,
        lambda c: LENGTH * (2 * c * hidden(c) + 3 * hidden(c) ** 2),
    ),
    ("signal", "attention"): (
        lambda c: 2 * c * (c // 4) + c // 4 + 2 * c,
        lambda c: 2 * c * (c // 4),
    ),
    ("cnn", "depthwise"): (lambda c: c * c + 12 * c, lambda c: AREA * (9 * c + c * c)),
    ("cnn", "bottleneck"): (
        lambda c: 2 * c * hidden(c) + 9 * hidden(c) ** 2 + 4 * hidden(c) + 3 * c,
        lambda c: AREA * (2 * c * hidden(c) + 9 * hidden(c) ** 2),
    ),
    ("cnn", "conv_small"): (lambda c: c * c + c, lambda c: AREA * c * c),
    ("transformer", "norm"): (lambda c: 3 * c, lambda c: 0),
    ("transformer", "lora"): (lambda c: 8 * c, lambda c: TIME * 8 * c),
    ("transformer", "lora_large"): (lambda c: 32 * c, lambda c: TIME * 32 * c),
    ("transformer", "attention"): (
        lambda c: 4 * c * c + 3 * c,  # norm 2C, queries keys values 3C^2, out C^2 + C
        lambda c: TIME * 4 * c * c + 2 * TIME**2 * c,
    ),
    ("transformer", "mlp_small"): (lambda c: 2 * c * c + 4 * c, lambda c: TIME * 2 * c * c),
    ("transformer", "mlp"): (lambda c: 8 * c * c + 7 * c, lambda c: TIME * 8 * c * c),
    ("mlp", "norm"): (lambda c: 3 * c, lambda c: 0),
    ("mlp", "mlp_small"): (lambda c: 2 * c * c + 4 * c, lambda c: 2 * c * c),
    ("mlp", "mlp"): (lambda c: 8 * c * c + 7 * c, lambda c: 8 * c * c),
    ("mlp", "gate"): (lambda c: 2 * c * c + 3 * c, lambda c: 2 * c * c),
}


@pytest.mark.parametrize(("topology", "name"), list(BY_HAND))
def test_costs_of_a_seed_counted_by_hand(topology, name):
    parameters, macs = BY_HAND[topology, name]
    for width in (16, 48):
        seed = BlueprintRegistry.get(name, topology).factory(width)
        assert count_parameters(seed) == parameters(width)
        assert count_macs(seed, activation(topology, width)) == macs(width)


def test_depthwise_costs_what_the_measurements_say():
    """77 parameters alone, 182 with depthwise in the slots of widths 1, 2 and 4."""
    factory = BlueprintRegistry.get("depthwise", "cnn").factory
    assert 77 + sum(count_parameters(factory(width)) for width in (1, 2, 4)) == 182


@pytest.mark.parametrize(
    ("topology", "name"),
    [("cnn", "conv_small"), ("transformer", "lora"), ("transformer", "lora_large")],
)
def test_seeds_that_can_be_merged_are_linear(topology, name):
    with forked_rng(1):
        seed = BlueprintRegistry.get(name, topology).factory(16)
        for parameter in seed.parameters():
            nn.init.normal_(parameter)
        x, y = activation(topology, 16), activation(topology, 16)
    torch.testing.assert_close(seed(2 * x - 3 * y), 2 * seed(x) - 3 * seed(y), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", NAMES["transformer"])
def test_transformer_seeds_look_ahead_only_where_they_say_so(name):
    with forked_rng(2):
        recipe = BlueprintRegistry.get(name, "transformer")
        seed = recipe.factory(16)
        for parameter in seed.parameters():
            nn.init.normal_(parameter, std=0.3)
        x = activation("transformer", 16)
        later = x.clone()
        later[:, 4:] += torch.randn_like(later[:, 4:])
    before, after = seed(x), seed(later)
    assert torch.equal(before[:, :4], after[:, :4]) is not recipe.reads_ahead
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_a_blueprint_is_one_decorator():
    from esper.kasmina import blueprint
    from esper.leyline.errors import EsperError

    @blueprint("test_twice", topologies=("cnn",))
    class Twice(nn.Module):
        """Doubles a little."""

        def __init__(self, width: int) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return 0.01 * x

    try:
        entry = BlueprintRegistry.get("test_twice", "cnn")
        assert entry.description == "Doubles a little."
        blueprint("test_twice", topologies=("cnn",))(Twice)  # as when its file is run again
        with pytest.raises(EsperError, match="already registered"):
            blueprint("test_twice", topologies=("cnn",))(type("Other", (Twice,), {}))
    finally:
        BlueprintRegistry.unregister("test_twice")
    with pytest.raises(EsperError, match="unknown blueprint 'test_twice'"):
        BlueprintRegistry.get("test_twice", "cnn")
