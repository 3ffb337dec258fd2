"""Our group norm of many members is torch's, member by member: values and all gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from kernel_support import HALF, close, examples, numbers, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.layout import laid_out  # noqa: E402
from esper.kasmina.ops.kernels.normalise import Normalise, supported  # noqa: E402


def ours(groups, relu):
    return lambda x, weight, bias: Normalise.apply(x, weight, bias, groups, relu)[0]


def torches(groups, relu):
    def run(x, weight, bias):
        out = F.group_norm(x.to(weight.dtype).contiguous(), groups, weight, bias)
        return F.relu(out) if relu else out

    return run


def compare(run_ours, run_torches, values):
    out, expected = run_ours(*values), run_torches(*values)
    close(out, expected)
    back = numbers(expected.shape, seed=7)
    found = torch.autograd.grad(out, values, back.to(out.dtype))
    wanted = torch.autograd.grad(expected, values, back.to(HALF).float())
    close(found[0], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        close(one, other, terms=back.numel() // one.numel())


def parameters(rows, channels, seed):
    flat = numbers((rows, 2 * channels + 3), seed, dtype=torch.float32)
    parts = flat[:, :channels], flat[:, channels + 1 : 2 * channels + 1]
    return tuple(part.requires_grad_(True) for part in parts)


@settings(max_examples=examples(12))
@given(
    rows=st.integers(1, 3),
    batch=st.integers(1, 5),
    channels=st.sampled_from([(1, 1), (2, 1), (8, 1), (32, 2), (16, 4)]),
    size=st.sampled_from([(2, 2), (3, 5), (4, 4), (9, 7)]),
    relu=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_stacked_rows_are_torchs_members(rows, batch, channels, size, relu, last, seed):
    count, groups = channels
    x = numbers((rows, batch, count, *size), seed)
    x = (laid_out(x, HALF)[0] if last else x).requires_grad_(True)
    values = (x, *parameters(rows, count, seed + 1))
    compare(vmap(ours(groups, relu)), vmap(torches(groups, relu)), values)


def test_one_member_without_an_axis():
    x = numbers((3, 8, 4, 4)).requires_grad_(True)
    weight, bias = (part.detach()[0].requires_grad_(True) for part in parameters(1, 8, 1))
    compare(ours(1, True), torches(1, True), (x, weight, bias))


def test_a_mean_far_from_zero_costs_few_digits():
    x = (numbers((1, 2, 8, 8, 8), dtype=torch.float32) + 64).to(HALF)
    weight, bias = parameters(1, 8, 1)
    out = vmap(ours(1, False))(x, weight, bias)
    exact = vmap(torches(1, False))(x.double(), weight.double(), bias.double())
    assert float((out - exact).abs().max().detach()) < (5e-2 if HALF is torch.bfloat16 else 1e-4)


@pytest.mark.parametrize("relu", [False, True])
def test_a_broken_sample_stays_alone(relu):
    x = numbers((2, 3, 8, 4, 4))
    x[1, 1] = torch.nan
    weight, bias = parameters(2, 8, 1)
    out = vmap(ours(1, relu))(x, weight, bias)
    assert out[1, 1].isnan().all()
    assert out[0].isfinite().all()
    assert out[1, [0, 2]].isfinite().all()
    dw, _ = torch.autograd.grad(out.float().sum(), (weight, bias))
    assert dw[0].isfinite().all()
    assert dw[1].isnan().any()


def test_what_does_not_fit_is_said():
    assert supported(numbers((1, 32, 8, 8)), 2)
    assert not supported(numbers((1, 12, 8, 8)), 1)
    assert not supported(torch.empty(1, 64, 64, 64), 4)
