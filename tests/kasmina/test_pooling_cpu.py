"""Max-pool in slices is torch's max-pool, ties and all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from esper.kasmina.layers.layers import MaxPool2d
from esper.kasmina.ops.layout import channels_last
from esper.kasmina.ops.pooling_cpu import can_pool_in_slices, max_pool_in_slices


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Few different values, so that many windows have several largest ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).float()


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 3),
    height=st.integers(1, 4),
    width=st.integers(1, 4),
    seed=st.integers(0, 999),
)
def test_values_and_gradients_are_torch_s(batch, channels, height, width, seed):
    x = draw((batch, channels, 2 * height, 2 * width), seed).requires_grad_()
    ours, theirs = max_pool_in_slices(x), F.max_pool2d(x, 2)
    assert torch.equal(ours, theirs)
    pull = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(seed))
    (mine,), (its,) = (torch.autograd.grad(y, x, pull) for y in (ours, theirs))
    assert torch.equal(mine, its)


@pytest.mark.parametrize("dim", [0, 1])
def test_members_under_vmap_are_those_of_a_loop(dim: int):
    x = draw((3, 3, 2, 4, 6), 0).requires_grad_()
    together = vmap(MaxPool2d(), in_dims=dim)(x)
    alone = torch.stack([F.max_pool2d(one, 2) for one in x.unbind(dim)])
    assert torch.equal(together, alone)
    pull = torch.randn(alone.shape, generator=torch.Generator().manual_seed(1))
    (mine,), (its,) = (torch.autograd.grad(y, x, pull) for y in (together, alone))
    assert torch.equal(mine, its)


def test_odd_sides_and_other_layouts_are_torch_s():
    even = draw((2, 8, 32, 32), 0)
    assert can_pool_in_slices(even)
    assert not can_pool_in_slices(even[:1])  # too small to gain
    assert not can_pool_in_slices(channels_last(even))
    for side in (1, 3):
        x = draw((200, 32, side, 4), side)
        assert not can_pool_in_slices(x)
        assert torch.equal(MaxPool2d()(x), F.max_pool2d(x, 2, ceil_mode=True))


def test_a_value_that_is_none_is_passed_on():
    x = draw((1, 1, 2, 2), 0)
    for place in range(4):
        broken = x.clone()
        broken.view(-1)[place] = torch.nan
        assert max_pool_in_slices(broken).isnan().all()
