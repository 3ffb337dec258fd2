"""Our max-pooling is torch's, bit for bit: values, winners of ties, NaN, odd edges, rows."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.func import vmap

from kernel_support import DEVICE, examples, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.layout import laid_out  # noqa: E402
from esper.kasmina.ops.kernels.pooling import BLOCK, max_pool  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FEW = (-1.0, 0.0, 0.0, 1.0, 2.0)
ODD = (*FEW, float("nan"), float("inf"), -float("inf"))


def values(shape: tuple[int, ...], dtype: torch.dtype, among=FEW, seed: int = 0) -> torch.Tensor:
    """Numbers from a short list, so that windows are full of equals."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(len(among), shape, generator=generator)
    return torch.tensor(among)[index].to(DEVICE, dtype)


def both_ways(pool, x: torch.Tensor, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the input's gradient for a random gradient of the output."""
    x = x.clone().requires_grad_(True)
    out = pool(x)
    generator = torch.Generator().manual_seed(seed)
    out.backward(torch.randn(out.shape, generator=generator).to(out))
    return out.detach(), x.grad


def torches(x: torch.Tensor) -> torch.Tensor:
    planes = x.reshape(-1, 1, *x.shape[-2:])
    out = F.max_pool2d(planes, 2, ceil_mode=True)
    return out.view(*x.shape[:-2], *out.shape[-2:])


def by_planes(x: torch.Tensor) -> torch.Tensor:
    """Leading axes are images of one channel each."""
    out = max_pool(x.reshape(-1, 1, *x.shape[-2:]))
    return out.reshape(*x.shape[:-2], *out.shape[-2:])


def assert_as_torch(x: torch.Tensor, pool=by_planes) -> None:
    for found, expected in zip(both_ways(pool, x), both_ways(torches, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=examples(60))
@given(
    lead=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    among=st.sampled_from([FEW, ODD]),
    seed=st.integers(0, 999),
)
def test_any_shape_and_any_values(lead, height, width, dtype, among, seed):
    assert_as_torch(values((*lead, height, width), dtype, among, seed))


def test_every_window_of_equals_and_nan_has_torchs_winner():
    windows = list(itertools.product((0.0, 1.0, float("nan"), -float("inf")), repeat=4))
    assert_as_torch(torch.tensor(windows, device=DEVICE).view(-1, 2, 2))


@pytest.mark.parametrize(
    "shape",
    [
        (3, 47, 53),
        (2, 64, 64),
        (1, 1, 1300),
        (BLOCK + 3, 2, 2),
        (37, 7, 7),
        (5, 32, 32),
        (130, 4, 4),
    ],
    ids=str,
)
def test_planes_share_a_program_or_take_several(shape):
    assert_as_torch(values(shape, torch.bfloat16, ODD))


@settings(max_examples=examples(30))
@example(shape=(2, 2, 3, 4, 5), last=True, among=FEW)
@given(
    shape=st.tuples(*(st.integers(1, top) for top in (3, 3, 9, 7, 7))),
    last=st.booleans(),
    among=st.sampled_from([FEW, ODD]),
)
def test_rows_of_images_however_they_lie(shape, last, among):
    x = values(shape, torch.bfloat16, among)
    assert_as_torch(laid_out(x, x.dtype)[0] if last else x, max_pool)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_vmapped_rows_equal_a_loop_over_them(dim):
    x = values((3, 4, 2, 5, 6), torch.float32, seed=5)

    def looped(rows):
        return torch.stack([torches(row) for row in rows.unbind(dim)])

    found = both_ways(vmap(max_pool, in_dims=dim), x)
    for one, other in zip(found, both_ways(looped, x), strict=True):
        assert torch.equal(one, other)


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device with 20 GiB")
def test_more_than_two_billion_elements():
    planes = 2**31 // 1024 + 3
    x = torch.zeros(planes, 32, 32, dtype=torch.bfloat16, device=DEVICE)
    x[-3:] = values((3, 32, 32), torch.bfloat16, ODD)
    x.requires_grad_(True)
    out = by_planes(x)
    out.backward(torch.ones_like(out))
    tail, grad = both_ways(torches, x.detach()[-3:])
    torch.testing.assert_close(out[-3:].detach(), tail, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(x.grad[-3:] != 0, grad != 0)
