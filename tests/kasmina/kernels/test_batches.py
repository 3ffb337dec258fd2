"""One kernel makes the batches that the torch code makes, bit for bit."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.tasks.spec import Augmentation
from esper.tolaria import SharedBatchIterator
from kernel_support import DEVICE, INTERPRETED, choose_kernels, examples, require_kernels

require_kernels()

from esper.kasmina.ops.kernels.batches import gather_batch  # noqa: E402


def data(shape: tuple[int, ...], kind: type = np.uint8, seed: int = 0) -> tuple:
    """Images (without 0, which is what padding is) and a label for each."""
    generator = np.random.default_rng(seed)
    images = generator.integers(1, 256, shape).astype(kind)
    return images, generator.integers(0, 10, shape[0])


def batches(ours: bool, images, labels, *sizes: int, steps: int = 2, out=None, **options) -> list:
    with pytest.MonkeyPatch.context() as patch:
        choose_kernels(patch, "esper.tolaria.data", ours)
        iterator = SharedBatchIterator(
            images, labels, *sizes, device=DEVICE, placement="device", **options
        )
    iterator.reset(3)
    return [
        (x.clone(), y.clone()) for step in range(steps) for x, y in iterator.step(step, out=out)
    ]


def assert_same(found: list, expected: list) -> None:
    for (x, y), (x_torch, y_torch) in zip(found, expected, strict=True):
        assert x.dtype == x_torch.dtype
        assert y.dtype == y_torch.dtype
        assert torch.equal(y, y_torch)
        assert torch.equal(x, x_torch)


@settings(max_examples=examples(25))
@given(
    shape=st.tuples(st.integers(3, 9), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    members=st.integers(1, 3),
    batch=st.integers(1, 3),
    per_step=st.integers(1, 2),
    kind=st.sampled_from([np.uint8, np.float32]),
    augmentation=st.sampled_from(get_args(Augmentation)),
    each=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_images(shape, members, batch, per_step, kind, augmentation, each, seed):
    channels = shape[1] if each else 1
    options = {
        "steps": 1,
        "seed": seed,
        "augmentation": augmentation,
        "mean": np.linspace(90.0, 120.0, channels).tolist(),
        "std": np.linspace(40.0, 70.0, channels).tolist(),
    }
    images, labels = data(shape, kind, seed)
    sizes = members, batch, per_step
    assert_same(
        batches(True, images, labels, *sizes, **options),
        batches(False, images, labels, *sizes, **options),
    )


@pytest.mark.parametrize("shape", [(5, 3, 32, 32), (4, 2, 45, 37), (4, 1, 28, 28)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planes_of_one_program_and_of_several(shape, dtype):
    options = {"augmentation": "crop_flip", "mean": (100.0,), "std": (60.0,), "steps": 1}
    images, labels = data(shape)
    found = batches(True, images, labels, 2, 3, 1, dtype=dtype, **options)
    exact = batches(False, images, labels, 2, 3, 1, **options)
    if dtype == torch.float32 or not INTERPRETED:
        assert_same(found, [(x.to(dtype), y) for x, y in exact])
    else:  # the interpreter cuts bits off where a GPU rounds
        for (x, _), (x_torch, _) in zip(found, exact, strict=True):
            torch.testing.assert_close(x.float(), x_torch, rtol=2.0**-7, atol=0)


def test_a_streams_bits_flip_and_shift():
    """Bit 0 flips; bits 8.. and 24.. are the shifts down and right, of 0 to 8 pixels."""
    image = torch.arange(1, 13, dtype=torch.uint8, device=DEVICE).view(1, 1, 3, 4)
    down, right = 5, 3
    index = torch.zeros(1, 4, dtype=torch.int64, device=DEVICE)
    centre = 4 << 8 | 4 << 24
    words = [centre, centre | 1, down << 8 | right << 24, -(1 << 63) | (down + 9) << 8 | 4 << 24]
    words_EB = torch.tensor([words], device=DEVICE)
    mean, std = torch.zeros(1, device=DEVICE), torch.ones(1, device=DEVICE)
    labels = torch.tensor([7], device=DEVICE)
    x, y = gather_batch(image, labels, index, words_EB, mean, std, padding=4)
    plain = image[0].float()
    zeros = torch.zeros(1, 3, 1, device=DEVICE)
    below = torch.cat([plain[:, 1:], torch.zeros(1, 1, 4, device=DEVICE)], dim=1)
    assert torch.equal(x[0, 0], plain)
    assert torch.equal(x[0, 1], plain.flip(-1))
    assert torch.equal(x[0, 2], torch.cat([zeros, below[..., :-1]], dim=2))
    assert torch.equal(x[0, 3], below)
    assert y.tolist() == [[7, 7, 7, 7]]


def test_batches_are_written_where_they_are_asked_for():
    images, labels = data((6, 2, 5, 3))
    x = torch.empty(2, 3, 2, 5, 3, dtype=torch.bfloat16, device=DEVICE)
    y = torch.empty(2, 3, dtype=torch.int64, device=DEVICE)
    options = {"augmentation": "flip", "dtype": torch.bfloat16}
    own = batches(True, images, labels, 2, 3, 2, **options)
    written = batches(True, images, labels, 2, 3, 2, out=(x, y), **options)
    assert_same(written, own)
    assert torch.equal(written[-1][0], x)
    assert torch.equal(written[-1][1], y)
