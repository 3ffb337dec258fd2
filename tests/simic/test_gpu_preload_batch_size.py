"""Training data are on the device once; data placement changes no batch and no shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import EsperError
from esper.tolaria import SharedBatchIterator
from esper.tolaria.data import DEVICE_SHARE, _choose_placement
from support import DEVICES

N = 29
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 3, 5, 4), dtype=np.uint8)
LABELS = np.arange(N, dtype=np.int64)
PLACEMENTS = ["auto", "device", "stream"]

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def iterator(**changes) -> SharedBatchIterator:
    defaults = {"members": 3, "batch_size": 4, "batches_per_step": 2, "seed": 5}
    return SharedBatchIterator(IMAGES, LABELS, **defaults | changes)


def all_batches(batches: SharedBatchIterator, steps: int = 4) -> list:
    return [batch for step in range(steps) for batch in batches.step(step)]


@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.integers(1, N),
    st.integers(1, 4),
    st.sampled_from(PLACEMENTS),
    st.sampled_from(["none", "flip", "crop_flip"]),
)
def test_every_batch_has_the_size_asked_for(members, size, count, placement, augmentation):
    """Over the end of an epoch too: no short batch, whatever divides what."""
    batches = iterator(
        members=members,
        batch_size=size,
        batches_per_step=count,
        placement=placement,
        augmentation=augmentation,
    )
    found = all_batches(batches, steps=3)
    assert len(found) == 3 * count
    for x, y in found:
        assert x.shape == (members, size, 3, 5, 4)
        assert y.shape == (members, size)
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement_changes_no_batch(device, placement):
    expected = all_batches(iterator(augmentation="crop_flip", mean=(100.0,), std=(50.0,)))
    batches = iterator(
        device=device, placement=placement, augmentation="crop_flip", mean=(100.0,), std=(50.0,)
    )
    for (x, y), (x0, y0) in zip(all_batches(batches), expected, strict=True):
        assert x.device.type == y.device.type == device
        assert torch.equal(y.cpu(), y0)
        torch.testing.assert_close(x.cpu(), x0)


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_the_batch_size_cuts_one_and_the_same_order(size):
    """Twelve examples a step, however they are dealt into batches."""
    found = all_batches(iterator(batch_size=size, batches_per_step=12 // size))
    whole = all_batches(iterator(batch_size=12, batches_per_step=1))
    for part in (0, 1):
        joined = torch.cat([batch[part] for batch in found], dim=1)
        assert torch.equal(joined, torch.cat([batch[part] for batch in whole], dim=1))


def test_members_share_one_copy_of_the_data():
    for members in (1, 50):
        batches = iterator(members=members)
        assert batches.examples.shape == IMAGES.shape
        assert batches.examples.dtype == torch.uint8, "pixels become numbers batch by batch"


def test_the_callers_array_is_not_the_iterators():
    own = IMAGES.copy()
    batches = SharedBatchIterator(own, LABELS, 2, 4, 2, seed=5)
    before = [x.clone() for x, _ in batches.step(0)]
    own[:] = 0
    for (x, _), kept in zip(batches.step(0), before, strict=True):
        assert torch.equal(x, kept)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(EsperError, match=f"batch_size={N + 1}: the data has {N} examples"):
        iterator(batch_size=N + 1)


def test_data_go_where_they_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    gpu = torch.device("cuda:0")
    fits = int(DEVICE_SHARE * 1000)
    assert _choose_placement("auto", fits, gpu) == "device"
    assert _choose_placement("auto", fits + 1, gpu) == "stream"
    assert _choose_placement("device", 10**9, gpu) == "device"
    assert _choose_placement("stream", 1, gpu) == "stream"
    assert _choose_placement("stream", 10**9, torch.device("cpu")) == "device"


@needs_cuda
def test_preloaded_data_are_on_the_gpu_and_streamed_data_are_not():
    for placement, home in (("device", "cuda"), ("stream", "cpu"), ("auto", "cuda")):
        batches = iterator(device="cuda", placement=placement)
        assert batches.examples.device.type == batches.targets.device.type == home


@needs_cuda
def test_preloaded_batches_never_wait_for_the_device():
    batches = iterator(device="cuda", placement="device")
    list(batches.step(0))
    torch.cuda.set_sync_debug_mode("error")
    try:
        list(batches.step(1))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_more_members_take_no_more_memory_for_data():
    def used(members: int) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        pixels = np.zeros((2000, 3, 32, 32), dtype=np.uint8)
        labels = np.zeros(2000, dtype=np.int64)
        batches = SharedBatchIterator(pixels, labels, members, 4, 1, device="cuda")
        size = torch.cuda.memory_allocated() - before
        del batches
        return size

    assert used(64) == used(1)
