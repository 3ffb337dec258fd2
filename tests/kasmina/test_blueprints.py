"""Every seed keeps its slot's shape, barely disturbs at birth, is alive, and learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina import BlueprintRegistry
from esper.kasmina.blending import Gate, blend
from esper.kasmina.rng import forked_rng
from esper.leyline import BlendStyle
from support import CNN_BLUEPRINTS

STYLES = list(BlendStyle)
CASES = [
    (name, style, width)
    for name in CNN_BLUEPRINTS
    for style in STYLES
    for width in sorted({BlueprintRegistry.get(name, "cnn").min_width, 2, 3, 8, 17, 32, 128})
]


class Slot(nn.Module):
    """A seed at alpha 1 in a slot, outside any population."""

    def __init__(self, name: str, style: BlendStyle, width: int) -> None:
        super().__init__()
        self.delta = BlueprintRegistry.get(name, "cnn").factory(width)
        self.gate = Gate(width, "cnn") if style is BlendStyle.GATE else None
        self.style = style

    def forward(self, h: Tensor) -> Tensor:
        gate = self.gate(h) if self.gate is not None else None
        return blend(h, self.delta(h), 1.0, self.style, gate)


def slot_and_input(name: str, style: BlendStyle, width: int) -> tuple[Slot, Tensor]:
    with forked_rng(width):
        return Slot(name, style, width), torch.relu(torch.randn(6, width, 5, 5))


def toy_target(h: Tensor) -> Tensor:
    """Something every blueprint can move towards: the activation with its channels rescaled."""
    scale = torch.linspace(0.5, 1.5, h.shape[1]).view(1, -1, 1, 1)
    return h * scale


@pytest.mark.parametrize(("name", "style", "width"), CASES)
def test_seed_keeps_the_shape_and_is_almost_identity_at_birth(name, style, width):
    slot, h = slot_and_input(name, style, width)
    out = slot(h)
    assert out.shape == h.shape
    assert slot(h[..., :3]).shape == h[..., :3].shape, "any resolution"
    change = (out - h).norm() / h.norm()
    assert 0 < change < 0.12, "near identity, but not dead"


@pytest.mark.parametrize(("name", "style", "width"), CASES)
def test_every_parameter_is_alive_within_two_steps(name, style, width):
    slot, h = slot_and_input(name, style, width)
    optimiser = torch.optim.SGD(slot.parameters(), lr=0.05)
    alive: set[str] = set()
    for _ in range(2):
        optimiser.zero_grad()
        (slot(h) - toy_target(h)).square().mean().backward()
        alive |= {n for n, p in slot.named_parameters() if p.grad is not None and p.grad.any()}
        optimiser.step()
    assert alive == {n for n, _ in slot.named_parameters()}


@pytest.mark.parametrize(("name", "style", "width"), CASES)
def test_a_toy_loss_falls(name, style, width):
    slot, h = slot_and_input(name, style, width)
    optimiser = torch.optim.Adam(slot.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = (slot(h) - toy_target(h)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.97 * losses[0]


def test_every_registered_cnn_blueprint_is_covered_here():
    assert set(BlueprintRegistry.names("cnn")) == set(CNN_BLUEPRINTS)


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
        with pytest.raises(EsperError, match="already registered"):
            blueprint("test_twice", topologies=("cnn",))(Twice)
    finally:
        BlueprintRegistry.unregister("test_twice")
    with pytest.raises(EsperError, match="unknown blueprint 'test_twice'"):
        BlueprintRegistry.get("test_twice", "cnn")
