"""Streamed data: the batches that data on the device make, copied beside what trains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cuda_support import DEVICE, NEEDS_CUDA, SHORT, assert_same, engine_on_gpu, sync_mode
from engine_support import histories, random_policy
from esper.tolaria.data import SharedBatchIterator

pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("exact")]

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
TOKENS = np.arange(60 * 5, dtype=np.int64).reshape(60, 5)
LABELS = np.arange(60, dtype=np.int64)
DATA = {"images": (IMAGES, LABELS, "crop_flip"), "tokens": (TOKENS, TOKENS, "none")}
LONG = 400_000_000
"""Clock ticks that keep a stream busy for some tenths of a second."""


def batches_of(kind: str, placement: str) -> SharedBatchIterator:
    examples, targets, augmentation = DATA[kind]
    normalised = {"mean": (100.0,), "std": (60.0,), "augmentation": augmentation}
    return SharedBatchIterator(
        examples, targets, 3, 8, 5, 7, DEVICE, placement=placement, **normalised
    )


def two_episodes(batches: SharedBatchIterator) -> dict[str, torch.Tensor]:
    """Copies of all their inputs and targets, made by the device when it gets there."""
    seen = []
    for round_index in range(2):
        batches.reset(round_index)
        for step in range(3):
            seen += [part.clone() for pair in batches.step(step) for part in pair]
    return {str(place): part for place, part in enumerate(seen)}


@pytest.mark.parametrize("kind", DATA)
def test_a_device_that_lags_behind_still_reads_every_batch(kind):
    """All batches are asked for before the first one is read."""
    expected = two_episodes(batches_of(kind, "device"))
    batches = batches_of(kind, "stream")
    assert_same(two_episodes(batches), expected)  # and kernels and pinned memory are set up
    torch.cuda._sleep(LONG)
    behind = torch.cuda.Event()
    behind.record()
    found = two_episodes(batches)
    assert not behind.query(), "the device did not lag behind"
    assert_same(found, expected)


def test_a_batch_is_copied_beside_what_was_asked_for_before():
    batches = batches_of("images", "stream")
    made = batches.step(0)
    for _ in range(4):  # kernels and pinned memory are set up
        next(made)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    last = next(made)
    batches._copy_stream.synchronize()
    assert not torch.cuda.current_stream().query(), "the copy is done, what came before it is not"
    *_, expected = batches_of("images", "device").step(0)
    assert all(map(torch.equal, last, expected))


def test_asking_for_batches_waits_for_nothing():
    batches = batches_of("images", "stream")
    out = tuple(map(torch.empty_like, next(batches.step(0))))
    list(batches.step(0, out))
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    with sync_mode("error"):
        for step in range(1, 4):
            for _ in batches.step(step, out):
                pass
    assert not torch.cuda.current_stream().query()


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_streamed_data_are_the_same_data(graphs):
    spec, runs = replace(SHORT, augmentation="crop_flip"), []
    for placement in ("device", "stream"):
        engine = engine_on_gpu(spec, data_placement=placement, graphs=graphs, executor="vmap")
        assert engine.batches.placement == placement
        policy = random_policy(0, spec)
        for _ in range(2):
            engine.run_rollout(policy)
        runs.append(histories(engine.episode))
    assert_same(*runs)
