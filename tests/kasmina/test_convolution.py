"""Convolutions computed as matrix products are the convolutions torch computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from esper.kasmina.layers.counting import count_macs
from esper.kasmina.layers.layers import Conv1d, Conv2d, MaxPool1d
from esper.kasmina.ops.convolution import MAX_MATRIX, conv1d, conv2d
from esper.kasmina.ops.kernel_scope import kernel_scope


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Whole numbers: sums of their products are exact in float64, whatever the order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).double()


def torch_s(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int):
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2, groups=groups)


@settings(max_examples=60)
@given(
    batch=st.integers(1, 3),
    group_in=st.integers(1, 3),
    group_out=st.integers(1, 3),
    groups=st.integers(1, 3),
    kernel=st.sampled_from([1, 3, 5]),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_torch_s(
    batch, group_in, group_out, groups, kernel, height, width, bias, seed
):
    x = draw((batch, group_in * groups, height, width), seed).requires_grad_()
    weight = draw((group_out * groups, group_in, kernel, kernel), seed + 1).requires_grad_()
    inputs = [x, weight]
    b = draw((group_out * groups,), seed + 2).requires_grad_() if bias else None
    inputs += [b] if b is not None else []
    ours, theirs = conv2d(x, weight, b, kernel // 2, groups), torch_s(x, weight, b, groups)
    assert torch.equal(ours, theirs)
    pull = draw(tuple(theirs.shape), seed + 3)
    for mine, its in zip(
        torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(theirs, inputs, pull),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(mine, its)


@settings(max_examples=60)
@given(
    batch=st.integers(1, 3),
    group_in=st.integers(1, 3),
    group_out=st.integers(1, 3),
    groups=st.integers(1, 3),
    kernel=st.sampled_from([1, 3, 5]),
    dilation=st.integers(1, 4),
    length=st.integers(1, 12),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_of_signals_are_torch_s(
    batch, group_in, group_out, groups, kernel, dilation, length, bias, seed
):
    x = draw((batch, group_in * groups, length), seed).requires_grad_()
    weight = draw((group_out * groups, group_in, kernel), seed + 1).requires_grad_()
    b = draw((group_out * groups,), seed + 2).requires_grad_() if bias else None
    inputs = [x, weight] if b is None else [x, weight, b]
    padding = dilation * (kernel // 2)
    ours = conv1d(x, weight, b, padding, groups, dilation)
    theirs = F.conv1d(x, weight, b, padding=padding, groups=groups, dilation=dilation)
    assert torch.equal(ours, theirs)
    pull = draw(tuple(theirs.shape), seed + 3)
    for mine, its in zip(
        torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(theirs, inputs, pull),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(mine, its)


@pytest.mark.parametrize("length", [6, 200])
@pytest.mark.parametrize(("kernel", "groups", "dilation"), [(1, 1, 1), (3, 1, 4), (3, 4, 1)])
def test_signals_of_members_under_vmap_are_those_of_a_loop(kernel, groups, dilation, length):
    x, weight = draw((5, 2, 4, length), 0), draw((5, 4, 4 // groups, kernel), 1)
    how = (dilation * (kernel // 2), groups, dilation)
    together = vmap(lambda h, w: conv1d(h, w, None, *how))(x, weight)
    assert torch.equal(
        together, torch.stack([conv1d(x[i], weight[i], None, *how) for i in range(5)])
    )


@pytest.mark.parametrize("length", [1, 7, 8])
def test_signals_are_pooled_as_torch_does(length):
    x = draw((3, 2, 4, length), 0)
    theirs = torch.stack([F.max_pool1d(h, 2, ceil_mode=True) for h in x])
    assert torch.equal(vmap(MaxPool1d())(x), theirs)
    assert torch.equal(MaxPool1d()(x[0]), theirs[0])


def test_a_stride_is_torch_s():
    layer, x = Conv2d(2, 4, 3, stride=2).double(), draw((3, 2, 7, 8), 0)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, stride=2, padding=1))
    assert count_macs(layer, x) == 9 * 2 * 4 * 4 * 4


@pytest.mark.parametrize(("kernel", "groups"), [(1, 1), (3, 1), (3, 4)])
def test_members_under_vmap_are_those_of_a_loop(kernel: int, groups: int):
    x = draw((5, 2, 4, 4, 4), 0)
    weight = draw((5, 4, 4 // groups, kernel, kernel), 1)
    together = vmap(lambda h, w: conv2d(h, w, None, kernel // 2, groups))(x, weight)
    alone = [torch_s(x[i], weight[i], None, groups) for i in range(5)]
    assert torch.equal(together, torch.stack(alone))


def test_large_images_are_torch_s_convolution():
    """Beyond the limit the matrix would cost more than the convolution."""
    calls = []
    weight = draw((2, 2, 3, 3), 0)
    for side in (4, 32):
        with torch.profiler.profile() as seen:
            conv2d(draw((1, 2, side, side), 1), weight, None, 1, 1)
        calls.append(any("conv" in event.key for event in seen.key_averages()))
    assert 4 * 16**2 <= MAX_MATRIX < 4 * 1024**2
    assert calls == [False, True]


@pytest.mark.parametrize("kernel", [1, 3])
def test_what_a_convolution_costs_does_not_depend_on_how_it_is_computed(kernel: int):
    layer, x = Conv2d(3, 5, kernel), torch.zeros(2, 3, 4, 4)
    assert count_macs(layer, x) == 3 * 5 * kernel**2 * 16
    with kernel_scope(torch_convolutions=True):
        assert count_macs(layer, x) == 3 * 5 * kernel**2 * 16


@pytest.mark.parametrize("length", [4, 400])
def test_what_a_signal_s_convolution_costs_does_not_depend_on_how_it_is_computed(length):
    layer = Conv1d(3, 6, 3, groups=3, dilation=2)
    assert count_macs(layer, torch.zeros(2, 3, length)) == 6 * 3 * length


def test_constants_made_without_gradients_serve_later_gradients():
    """The tables of taps are kept; a first call in inference mode must not spoil them."""
    x, weight = torch.randn(1, 1, 7, 3), torch.randn(1, 1, 3, 3, requires_grad=True)
    with torch.inference_mode():
        conv2d(x, weight, None, 1, 1)
    conv2d(x, weight, None, 1, 1).sum().backward()
    assert weight.grad is not None
