"""Each member sees whole epochs in an order of its own, whatever E and the device are."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from epoch_order import epoch_order
from esper.leyline.streams import stream_keys
from esper.tolaria import SharedBatchIterator
from esper.tolaria.data import CROP_PADDING, Augmentation
from support import DEVICES, refused

IMAGES = np.arange(23 * 3 * 6 * 5, dtype=np.uint8).reshape(23, 3, 6, 5)
LABELS = np.arange(23, dtype=np.int64)


def batches(steps: int, device: str = "cpu", round_index: int = 0, **settings) -> list:
    """(inputs, labels) of every batch of the first steps."""
    defaults = {"members": 3, "batch_size": 4, "batches_per_step": 5, "seed": 7}
    iterator = SharedBatchIterator(IMAGES, LABELS, device=device, **defaults | settings)
    iterator.reset(round_index)
    return [batch for step in range(steps) for batch in iterator.step(step)]


def labels_of(found: list) -> np.ndarray:
    """`[E, L]`: what each member saw, in order."""
    return torch.cat([y for _, y in found], dim=1).cpu().numpy()


@pytest.mark.parametrize("device", DEVICES)
def test_members_see_whole_epochs_in_the_order_of_their_streams(device):
    seen = labels_of(batches(4, device))
    expected = epoch_order(seed=7, members=3, images=23, length=80)
    np.testing.assert_array_equal(seen, LABELS[expected])
    for epoch in range(3):
        part = seen[:, 23 * epoch : 23 * (epoch + 1)]
        np.testing.assert_array_equal(np.sort(part, axis=1), np.tile(LABELS, (3, 1)))
    assert not np.array_equal(seen[0], seen[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("augmentation", ["none", "flip", "crop_flip"])
def test_a_members_batches_do_not_depend_on_the_others(augmentation: Augmentation, device):
    few = batches(3, device, members=1, augmentation=augmentation)
    many = batches(3, device, members=6, augmentation=augmentation)
    cpu = batches(3, "cpu", members=6, augmentation=augmentation)
    for (x1, y1), (x6, y6), (xc, yc) in zip(few, many, cpu, strict=True):
        assert torch.equal(x1[0], x6[0])
        assert torch.equal(y1[0], y6[0])
        assert torch.equal(yc, y6.cpu())
        torch.testing.assert_close(x6.cpu(), xc)


def test_rounds_and_seeds_differ_and_repeat():
    assert np.array_equal(labels_of(batches(2)), labels_of(batches(2)))
    assert not np.array_equal(labels_of(batches(2)), labels_of(batches(2, round_index=1)))
    assert not np.array_equal(labels_of(batches(2)), labels_of(batches(2, seed=8)))


def test_going_back_or_ahead_gives_the_same_step():
    """The order prepared ahead is used only for the step it was made for."""
    iterator = SharedBatchIterator(IMAGES, LABELS, 2, 4, 5, seed=7)
    straight = [[y.clone() for _, y in iterator.step(s)] for s in range(6)]
    for step in (4, 1, 1, 5, 0, 2, 3):
        for found, expected in zip(iterator.step(step), straight[step], strict=True):
            assert torch.equal(found[1], expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_queued_ahead_is_the_same_step(device):
    settings = {"members": 3, "batch_size": 4, "batches_per_step": 5, "augmentation": "crop_flip"}
    plain = SharedBatchIterator(IMAGES, LABELS, device="cpu", **settings)
    ahead = SharedBatchIterator(IMAGES, LABELS, device=device, **settings)
    ahead.queues_next = True
    made = []
    ahead._augmentation_bits = partial(_noted, made, ahead._augmentation_bits)
    for round_index, steps in ((0, (0, 1, 2)), (1, (0, 1, 4, 3))):
        for iterator in (plain, ahead):
            iterator.reset(round_index)
        for step in steps:
            made.clear()
            for (x1, y1), (x2, y2) in zip(plain.step(step), ahead.step(step), strict=True):
                torch.testing.assert_close(x2.cpu(), x1)
                assert torch.equal(y2.cpu(), y1)
            steps_made = [first // 5 for first in made]
            known = step in (1, 2)
            assert steps_made == ([step + 1] if known else [step, step + 1])


def _noted(made, work, first_E, count):
    made.append(int(first_E[0]))
    return work(first_E, count)


def test_images_are_normalised_by_channel():
    mean, std = (1.0, 2.0, 3.0), (2.0, 4.0, 5.0)
    (plain, y), *_ = batches(1)
    (scaled, _), *_ = batches(1, mean=mean, std=std)
    assert plain.dtype == torch.float32
    shape = (3, 1, 1)
    expected = (plain - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
    torch.testing.assert_close(scaled, expected)
    torch.testing.assert_close(plain[1, 2], torch.from_numpy(IMAGES[y[1, 2]]).float())


def test_flip_mirrors_about_half_of_the_images():
    pairs = list(zip(batches(20), batches(20, augmentation="flip"), strict=True))
    flips = 0
    for (plain, _), (changed, _) in pairs:
        same = (plain == changed).flatten(2).all(dim=2)
        mirrored = (plain.flip(-1) == changed).flatten(2).all(dim=2)
        assert (same | mirrored).all()
        flips += int((mirrored & ~same).sum())
    share = flips / (len(pairs) * 3 * 4)
    assert 0.45 < share < 0.55


def test_crop_equals_cutting_each_padded_image_by_hand():
    from esper.device.rng import random_bits

    ((plain, _),) = batches(1, batches_per_step=1)
    ((found, _),) = batches(1, batches_per_step=1, augmentation="crop_flip")
    keys = stream_keys(7, "round", 0, "member", np.arange(3), "augment", 0)
    bits = random_bits(keys, 4, torch.device("cpu"))
    size = 2 * CROP_PADDING + 1
    for e in range(3):
        for b in range(4):
            word = int(bits[e, b])
            image = plain[e, b].flip(-1) if word & 1 else plain[e, b]
            padded = torch.nn.functional.pad(image, (CROP_PADDING,) * 4)
            down, right = (word >> 8 & 0xFFFF) % size, (word >> 24 & 0xFFFF) % size
            assert torch.equal(found[e, b], padded[:, down : down + 6, right : right + 5])


def test_each_batch_is_augmented_from_streams_of_its_own():
    """A step draws for all its batches at once; the bits are those of each batch alone."""
    from esper.device.rng import random_bits

    iterator = SharedBatchIterator(IMAGES, LABELS, 3, 4, 5, seed=7, augmentation="flip")
    iterator.reset(2)
    plain = SharedBatchIterator(IMAGES, LABELS, 3, 4, 5, seed=7)
    plain.reset(2)
    for batch, ((found, _), (x, _)) in enumerate(zip(iterator.step(6), plain.step(6), strict=True)):
        keys = stream_keys(7, "round", 2, "member", np.arange(3), "augment", 6 * 5 + batch)
        flip = (random_bits(keys, 4, torch.device("cpu")) & 1).bool()[..., None, None, None]
        assert torch.equal(found, torch.where(flip, x.flip(-1), x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("placement", ["device", "stream"])
def test_batches_are_written_to_given_tensors_in_the_type_asked_for(device, placement):
    settings = {"augmentation": "crop_flip", "mean": (100.0,), "std": (60.0,)}
    iterator = SharedBatchIterator(
        IMAGES, LABELS, 3, 4, 5, 7, device, placement=placement, dtype=torch.bfloat16, **settings
    )
    x = torch.empty(3, 4, 3, 6, 5, dtype=torch.bfloat16, device=device)
    y = torch.empty(3, 4, dtype=torch.int64, device=device)
    expected = batches(1, device, placement=placement, **settings)
    for given_batch, (x_own, y_own) in zip(iterator.step(0, out=(x, y)), expected, strict=True):
        assert given_batch[0] is x
        assert given_batch[1] is y
        assert torch.equal(x, x_own.to(torch.bfloat16))
        assert torch.equal(y, y_own)


def test_token_ids_stay_whole_numbers():
    tokens = np.arange(40, dtype=np.int64).reshape(10, 4)
    iterator = SharedBatchIterator(tokens, tokens, 2, 3, 1)
    ((x, y),) = iterator.step(0)
    assert x.dtype == torch.int64
    assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(10, 3), (10, 3, 4), (10, 3, 2, 2)])
def test_numbers_of_any_kind_are_normalised_along_their_channels(shape, dtype):
    examples = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    mean, std = (1.0, 2.0, 3.0), (2.0, 4.0, 8.0)
    labels = np.arange(10, dtype=np.int64)
    iterator = SharedBatchIterator(examples, labels, 1, 10, 1, mean=mean, std=std)
    ((x, y),) = iterator.step(0)
    moved = np.moveaxis(examples[y[0].numpy()].astype(np.float64), 1, -1)
    expected = np.moveaxis((moved - np.array(mean)) / np.array(std), -1, 1)
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x[0].numpy(), expected, rtol=1e-6)


def test_a_forked_process_goes_on():
    import os
    import signal

    iterator = SharedBatchIterator(IMAGES, LABELS, 2, 4, 5, seed=7)
    expected = [y for _, y in SharedBatchIterator(IMAGES, LABELS, 2, 4, 5, seed=7).step(1)]
    list(iterator.step(0))
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        found = [y for _, y in iterator.step(1)]
        os._exit(0 if all(map(torch.equal, found, expected)) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"std": (1.0, 0.0, 1.0)}, "std above 0"),
        ({"mean": (float("nan"),)}, "finite"),
        ({"members": 0}, "members=0"),
        ({"batch_size": 24}, "batch_size=24: the data has 23 examples"),
        ({"batches_per_step": 0}, "batches_per_step=0"),
        ({"augmentation": "flp"}, "did you mean 'flip'"),
    ],
)
def test_bad_settings_are_named(settings, word):
    assert word in refused(lambda: batches(1, **settings))


def test_bad_data_are_named():
    assert "23 examples but 5 targets" in refused(
        lambda: SharedBatchIterator(IMAGES, LABELS[:5], 1, 1, 1)
    )
    vectors = np.zeros((8, 3), dtype=np.float32)
    assert "needs images" in refused(
        lambda: SharedBatchIterator(vectors, np.zeros(8, np.int64), 1, 1, 1, augmentation="flip")
    )
