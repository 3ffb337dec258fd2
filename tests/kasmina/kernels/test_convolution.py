"""Our convolutions of many members are torch's, member by member: values and both gradients."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.func import vmap

from kernel_support import HALF, INTERPRETED, close, examples, numbers, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.convolution import convolve  # noqa: E402
from esper.kasmina.ops.kernels.depthwise import convolve_depthwise  # noqa: E402
from esper.kasmina.ops.kernels.layout import laid_out, pixel_stride  # noqa: E402

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from esper.kasmina.ops.kernels.convolution import PIXELS, _convolve

names = _convolve.arg_names
numbers = ["*bf16"] * 3 + ["i32"] * 4
sizes = dict(H=5, W=5, STEP=step, INPUTS=width, OUT=out, OUTPUTS=columns, K=length, CHUNK=16,
             TAPS=side * side, SIDE=side, BLOCK=PIXELS)
kinds = dict(zip(names, numbers + ["constexpr"] * len(sizes)))
aligned = {(at,): [["tt.divisibility", 16]] for at in range(3)}
source = ASTSource(_convolve, kinds, {(names.index(n),): v for n, v in sizes.items()}, aligned)
print(compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"])
"""


def ours(x, weight, alone=False):
    return (convolve_depthwise if alone else convolve)(x, weight, HALF)


def torches(x, weight, alone=False):
    groups = x.shape[-3] if alone else 1
    return F.conv2d(
        x.float(), weight.to(HALF).float(), padding=weight.shape[-1] // 2, groups=groups
    )


def compare(run_ours, run_torches, x, weight):
    """Values and gradients for a random gradient of the output."""
    out, expected = run_ours(x, weight), run_torches(x, weight)
    close(out, expected)
    back = numbers(expected.shape, seed=7)
    found = torch.autograd.grad(out, (x, weight), back.to(out.dtype))
    wanted = torch.autograd.grad(expected, (x, weight), back.to(HALF).float())
    close(found[0], wanted[0])
    close(found[1], wanted[1])


def weights(rows, outputs, inputs, side, seed):
    """Cut from a longer row, as a store hands them out."""
    size = outputs * inputs * side * side
    flat = numbers((rows, size + 5), seed=seed, dtype=torch.float32)
    return flat[:, 2 : size + 2].view(rows, outputs, inputs, side, side).requires_grad_(True)


def assert_large_kernel(inputs, outputs, size, side):
    """Below `fused.MAX_KERNEL`'s door, which still keeps them from our kernels."""
    x = numbers((2, 3, inputs, *size))
    x = laid_out(x, HALF)[0].requires_grad_(True)
    compare(vmap(ours), vmap(torches), x, weights(2, outputs, inputs, side, 1))


@pytest.mark.parametrize("outputs", [20, 24])
@pytest.mark.parametrize("size", [(5, 5), (7, 7)])
def test_5x5_kernels_that_were_wrong_on_a_gpu(outputs, size):
    assert_large_kernel(8, outputs, size, 5)


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no assembler to be wrong")
@pytest.mark.parametrize("size", [(5, 5), (7, 7), (8, 8), (6, 9), (16, 16)], ids=str)
@pytest.mark.parametrize("side", [5, 7])
@pytest.mark.parametrize("outputs", [1, 4, 8, 20, 24, 32])
@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 5, 8, 12, 16, 32], ids="from_{}_to".format)
def test_large_kernels(inputs, outputs, side, size):
    assert_large_kernel(inputs, outputs, size, side)


@settings(max_examples=examples(12))
@given(
    rows=st.integers(1, 3),
    batch=st.integers(1, 3),
    inputs=st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 20]),
    outputs=st.sampled_from([1, 2, 3, 6, 8, 16, 24]),
    size=st.sampled_from([(1, 1), (2, 3), (5, 4), (8, 8), (7, 1)]),
    side=st.sampled_from([1, 3, 5]),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
@example(rows=1, batch=2, inputs=3, outputs=1, size=(1, 1), side=1, last=False, seed=0)
def test_stacked_rows_are_torchs_members(rows, batch, inputs, outputs, size, side, last, seed):
    x = numbers((rows, batch, inputs, *size), seed)
    x = (laid_out(x, HALF)[0] if last else x).requires_grad_(True)
    compare(vmap(ours), vmap(torches), x, weights(rows, outputs, inputs, side, seed + 1))


@pytest.mark.parametrize("channels", [3, 8, 17])
def test_depthwise(channels):
    x = numbers((2, 3, channels, 6, 5)).requires_grad_(True)
    weight = weights(2, channels, 1, 3, 1)

    def run(function):
        return vmap(lambda a, b: function(a, b, alone=True))

    compare(run(ours), run(torches), x, weight)


def test_an_input_that_all_members_share_gets_the_sum_of_their_gradients():
    x = numbers((2, 3, 6, 6)).requires_grad_(True)
    weight = weights(3, 8, 3, 3, 1)
    compare(vmap(ours, in_dims=(None, 0)), vmap(torches, in_dims=(None, 0)), x, weight)


def test_one_member_without_an_axis():
    x = numbers((2, 3, 6, 6)).requires_grad_(True)
    weight = weights(1, 8, 3, 3, 1).detach()[0].requires_grad_(True)
    compare(ours, torches, x, weight)


def test_more_pixels_than_a_tile_and_parts_of_a_gradient():
    x = laid_out(numbers((1, 9, 8, 16, 16)), HALF)[0].requires_grad_(True)
    compare(vmap(ours), vmap(torches), x, weights(1, 8, 8, 3, 1))


def test_a_broken_member_stays_alone():
    x = numbers((3, 2, 4, 6, 6))
    weight = weights(3, 8, 4, 3, 1).detach().clone()
    weight[1] = torch.nan
    x.requires_grad_(True), weight.requires_grad_(True)
    out = vmap(ours)(x, weight)
    dx, dw = torch.autograd.grad(out.float().sum(), (x, weight))
    for part in (out, dx):
        assert part[1].isnan().all()
        assert part[[0, 2]].isfinite().all()
    assert dw.isfinite().all()  # of the input alone


def test_what_comes_out_lies_laid_out_and_is_taken_as_it_lies():
    x = numbers((2, 2, 3, 4, 4))
    out = vmap(ours)(x, weights(2, 8, 3, 3, 1))
    assert pixel_stride(out) == 8
    assert laid_out(out, HALF)[0] is out


def test_three_channels_get_a_fourth_place_that_holds_nothing():
    x, step = laid_out(numbers((1, 2, 3, 4, 4)), HALF)
    assert step == 4
    assert x.as_strided((1, 2, 4, 4), x.stride()[:2] + x.stride()[3:], 3).abs().max() == 0


def test_the_same_numbers_every_time():
    x, weight = numbers((2, 5, 8, 16, 16)).requires_grad_(True), weights(2, 8, 8, 3, 1)
    runs = [torch.autograd.grad(vmap(ours)(x, weight).float().square().sum(), (x, weight))]
    runs += [torch.autograd.grad(vmap(ours)(x, weight).float().square().sum(), (x, weight))]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


def test_three_channels_out_and_gradients_of_any_layout():
    """A gradient may come with gaps: padded pixels, or rows that lie apart."""
    x, weight = numbers((2, 3, 4, 5, 5)).requires_grad_(True), weights(2, 3, 4, 3, 1)
    back = numbers((2, 2, 3, 3, 5, 5), seed=7)[:, 0]
    out, expected = vmap(ours)(x, weight), vmap(torches)(x, weight)
    found = torch.autograd.grad(out, (x, weight), back.to(out.dtype))
    wanted = torch.autograd.grad(expected, (x, weight), back.float())
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


def test_weights_of_any_layout():
    x = numbers((2, 3, 4, 5, 5)).requires_grad_(True)
    weight = weights(2, 8, 4, 3, 1).detach().permute(0, 1, 3, 4, 2).contiguous()
    compare(vmap(ours), vmap(torches), x, weight.permute(0, 1, 4, 2, 3).requires_grad_(True))


@pytest.mark.parametrize("alone", [False, True])
def test_a_second_derivative_is_refused(alone):
    x = numbers((2, 4, 5, 5)).requires_grad_(True)
    weight = weights(1, 4, 1 if alone else 4, 3, 1).detach()[0].requires_grad_(True)
    out = ours(x, weight, alone)
    (dx,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.float().sum().backward()


@pytest.mark.parametrize("alone", [False, True])
def test_the_gradient_of_one_does_not_need_the_others(alone):
    x, weight = numbers((2, 3, 4, 5, 5)), weights(2, 4, 1 if alone else 4, 3, 1).detach()
    back = numbers((2, 3, 4, 5, 5), seed=7)

    def gradients(*wanted):
        """Of `x`, of the weights: those that are wanted."""
        values = [v.clone().requires_grad_(w) for v, w in zip((x, weight), wanted, strict=True)]
        out = vmap(lambda a, b: ours(a, b, alone))(*values)
        of = [value for value in values if value.requires_grad]
        return torch.autograd.grad(out, of, back.to(out.dtype))

    both = gradients(True, True)
    assert torch.equal(gradients(True, False)[0], both[0])
    assert torch.equal(gradients(False, True)[0], both[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        {"step": 3, "width": 4, "out": 4, "columns": 16, "length": 48, "side": 3},
        {"step": 8, "width": 8, "out": 24, "columns": 32, "length": 208, "side": 5},
    ],
)
def test_no_pair_of_16_bit_sums_is_left_to_ptxas(sizes):
    """Their constants are lost in copies that ptxas 12.8 makes; both shapes had such copies."""
    given_sizes = "".join(f"{name} = {size}\n" for name, size in sizes.items())
    done = subprocess.run(
        [sys.executable, "-c", given_sizes + COMPILED],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    )
    assert done.returncode == 0, done.stderr
    assert "wgmma" in done.stdout
    assert done.stdout.count("s16x2") == 0
