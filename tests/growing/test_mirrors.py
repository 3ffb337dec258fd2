"""Whether images look alike mirrored decides on which augmentations a search chooses from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import esper
from esper.growing.mirrors import MAX_NUMBERS, MAX_SAMPLES, look_alike_mirrored
from esper.growing.run import GrowRun
from esper.growing.trainers.augment import IMAGE_LEVELS
from esper.growing.trainers.data import Samples


def samples(per_class: int, seed: int, turned: float = 0.0, noise: float = 0.5) -> Samples:
    """Bars at the top or at the left; `turned`: the share of those at the left that is mirrored."""
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1], per_class)
    x = rng.normal(0.0, noise, (2 * per_class, 3, 6, 6)).astype(np.float32)
    x[y == 0, :, 0, :] += 1.0
    x[y == 1, :, :, 0] += 1.0
    mirrored = (y == 1) & (rng.random(len(y)) < turned)
    x[mirrored] = x[mirrored, :, :, ::-1].copy()
    return Samples([torch.from_numpy(x)], torch.from_numpy(y))


@pytest.mark.parametrize(("turned", "alike"), [(0.5, True), (0.0, False)])
def test_images_look_alike_mirrored_if_those_of_a_class_face_both_ways(turned, alike):
    assert look_alike_mirrored(samples(300, 0, turned), samples(100, 1, turned)) is alike


def test_where_the_mean_images_say_nothing_nothing_is_known():
    drawn = torch.from_numpy(np.random.default_rng(0).integers(0, 2, 600))
    noise = Samples(samples(300, 0).values, drawn)
    assert look_alike_mirrored(noise, Samples(samples(100, 1).values, drawn[:200])) is None


@pytest.mark.parametrize("change", [
    lambda part: Samples([part.values[0].flatten(2)], part.targets),
    lambda part: Samples(part.values, part.targets.float()),
    lambda part: Samples(part.values, part.targets[:, None].expand(-1, 2)),
    lambda part: Samples(part.values, part.targets - 1),
])  # fmt: skip
def test_only_images_with_a_class_each_are_looked_at(change):
    assert look_alike_mirrored(change(samples(300, 0)), change(samples(100, 1))) is None


def test_samples_from_all_of_a_part_are_looked_at_and_no_more_than_some(monkeypatch):
    """They are in the order of their classes here."""
    train, val, sizes = samples(3 * MAX_SAMPLES, 0), samples(100, 1), list[int]()
    take = Samples.take

    def noting(part, index):
        found = take(part, index)
        sizes.append(len(found[1]))
        return found

    monkeypatch.setattr(Samples, "take", noting)
    assert look_alike_mirrored(train, val) is False
    assert sizes == [MAX_SAMPLES, 200]
    monkeypatch.setattr("esper.growing.mirrors.MAX_NUMBERS", 50 * 3 * 6 * 6)
    look_alike_mirrored(train, val)
    assert sizes[2:] == [50, 50]
    assert MAX_NUMBERS * 4 <= 2**28, "bytes"


def test_a_class_that_was_never_seen_is_no_ones_nearest():
    train, val = samples(300, 0, 0.5), samples(100, 1, 0.5)
    gap = Samples(train.values, 3 * train.targets), Samples(val.values, 3 * val.targets)
    assert look_alike_mirrored(*gap) is True


def test_a_search_on_digits_flips_none(tmp_path, monkeypatch):
    chosen, augments = list[object](), GrowRun._augments
    monkeypatch.setattr(
        GrowRun, "_augments", lambda run: chosen.append(augments(run)) or chosen[-1]
    )
    x, y = load_digits(return_X_y=True)
    esper.grow(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (x.reshape(-1, 1, 8, 8) / 16, y), epochs=1,
        budget=esper.Budget(host_runs=1), folder=tmp_path, verbose=False, device="cpu", widths=(),
    )  # fmt: skip
    assert chosen == [IMAGE_LEVELS[False]]
