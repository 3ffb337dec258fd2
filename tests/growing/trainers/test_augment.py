"""Augmentation: what it does to a sample, and that it is the same wherever a batch is computed."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from captured_support import FakeMachine, digest, image_data, make_job, make_task, train_all
from esper.growing.trainers.augment import (
    CUTOUT,
    IMAGE_LEVELS,
    LEVELS,
    NOISE,
    OPERATIONS,
    SCALE,
    SHIFT,
    Augmentation,
    check_augmentation,
    levels,
)
from esper.growing.trainers.captured import CapturedTrainer
from esper.growing.trainers.eager import EagerTrainer
from esper.growing.trainers.kinds import Kinds
from support import refused

CPU = torch.device("cpu")


def numbered(*shape: int) -> Tensor:
    """No two positions of a sample are equal, none is 0."""
    return 1.0 + torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def shifted(sample: Tensor, down: int, right: int) -> Tensor:
    """A sample `[C, H, W]` moved up and left by so much, zeros outside."""
    out = torch.zeros_like(sample)
    height, width = sample.shape[1:]
    for row in range(height):
        for column in range(width):
            if 0 <= row + down < height and 0 <= column + right < width:
                out[:, row, column] = sample[:, row + down, column + right]
    return out


@settings(max_examples=20)
@given(name=st.sampled_from(["shift", "flip", "flip+shift"]), seed=st.integers(0, 99),
       number=st.integers(0, 10**6), side=st.sampled_from([5, 8, 17]))  # fmt: skip
def test_every_image_is_flipped_or_shifted_by_at_most_an_eighth(name, seed, number, side):
    x, most = numbered(6, 2, side, side + 3), max(1, side // SHIFT)
    out = Augmentation(name, seed, CPU)(x, number)
    for before, after, (down, right, flip) in zip(x, out, moves(out, x), strict=True):
        assert max(abs(down), abs(right)) <= (most if "shift" in name else 0)
        assert not flip or "flip" in name
        moved = shifted(before, down, right)
        assert torch.equal(after, moved.flip(2) if flip else moved)


def moves(out: Tensor, x: Tensor) -> list[tuple[int, int, bool]]:
    """How far each of some numbered images was moved, and whether it was flipped."""
    height, width = x.shape[2:]
    row, column = height // 2, width // 2
    place = (out[:, 0, row, column] - x[:, 0, 0, 0]).long()
    flip = out[:, 0, row, column + 1] < out[:, 0, row, column]
    right = place % width - torch.where(flip, width - 1 - column, column)
    return list(zip((place // width - row).tolist(), right.tolist(), flip.tolist(), strict=True))


def test_every_move_is_as_likely_as_any_other():
    x = numbered(1, 1, 16, 16).expand(4000, -1, -1, -1).contiguous()
    seen = Counter(moves(Augmentation("flip+shift", 0, CPU)(x, 0), x))
    every = {(down, right, flip) for down in range(-2, 3) for right in range(-2, 3)
             for flip in (False, True)}  # fmt: skip
    assert set(seen) == every
    assert 40 < min(seen.values()) <= max(seen.values()) < 130, "80 each, but for chance"


def test_signals_are_shifted_along_their_length():
    x = numbered(40, 3, 24)
    out = Augmentation("shift", 0, CPU)(x, 5)
    options = {d: shifted(one[:, None], 0, d)[:, 0] for one in x[:1] for d in range(-3, 4)}
    assert any(torch.equal(out[0], option) for option in options.values())
    assert len({tuple(one[0].eq(0).tolist()) for one in out}) > 4, "each by another amount"


def test_numbers_depend_on_run_batch_and_sample():
    x = numbered(64, 1, 16, 16)
    made = Augmentation("flip+shift", 1, CPU)
    again = Augmentation("flip+shift", 1, CPU)(x, torch.tensor([7]))
    assert torch.equal(made(x, 7), again), "the number of the batch may be on the device"
    assert not torch.equal(made(x, 8), again)
    assert not torch.equal(Augmentation("flip+shift", 2, CPU)(x, 7), again)
    assert torch.equal(made(x[:16], 7), again[:16]), "a sample's numbers depend on no other"


@pytest.mark.parametrize("name", ["shift", "flip+shift"])
def test_memory_layouts_have_the_same_values(name):
    x = torch.randn(8, 3, 9, 12)
    last = x.to(memory_format=torch.channels_last)
    made = Augmentation(name, 0, CPU)
    assert torch.equal(made(x, 3), made(last, 3))
    assert made(last, 3).is_contiguous(memory_format=torch.channels_last)


def test_a_run_with_augmentation_is_the_same_captured_and_differs_from_one_without(tmp_path):
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))

    task = make_task(image_data())
    jobs = [make_job(net, n, tmp_path, batches=12, augment="flip+shift") for n in range(2)]
    captured = train_all(CapturedTrainer(task, machine=FakeMachine()), jobs)
    for job in jobs:
        program = Kinds(task, FakeMachine().capture).program(job)
        while not program.done:
            program.run_eager()
        assert digest(captured[job.number]) == digest(program.outcome(program.how("eager")))
        assert captured[job.number].how.trainer == "captured"
    changed = [Kinds(task).program(job)._augmented(task.train.values, 3)[0] for job in jobs]
    assert not torch.equal(*changed), "each run has changes of its own"
    plain = [make_job(net, 0, tmp_path, batches=12, augment=name) for name in ("none", "flip")]
    one, other = (digest(train_all(EagerTrainer(task), [job])[0]) for job in plain)
    assert one != other


@pytest.mark.parametrize(
    ("name", "shapes", "said"),
    [
        ("flop", [(3, 8, 8)], "augment='flop': 'flop' is none of auto, none, flip, shift"),
        ("flip+noise", [(3, 40)], "flip is for images [C, H, W], and samples are [3, 40]"),
        ("shift", [(12,)], "shift is for signals [C, L] or images [C, H, W], and samples are [12]"),
        ("shift", [(3, 8, 8), (4,)], "samples are [3, 8, 8], [4]"),
    ],
)
def test_what_has_no_such_augmentation_is_refused_in_one_line(name, shapes, said):
    assert said in refused(lambda: check_augmentation(name, shapes))
    for any_shape in ([(12,)], [(3, 8, 8), (4,)]):
        check_augmentation("none", any_shape)


def test_a_search_chooses_from_what_is_known_to_fit_and_from_nothing_where_it_is_not():
    for axes, names in LEVELS.items():
        shape = (3, 8, 8)[:axes]
        assert levels([shape], True, ()) == names
        assert names[0] == "none"
        for name in names:
            check_augmentation(name, [shape])
    image = [(3, 8, 8)]
    for mirrored, names in IMAGE_LEVELS.items():
        assert levels(image, True, (), lambda mirrored=mirrored: mirrored) == names
        for name in names:
            check_augmentation(name, image)
    assert not [name for name in IMAGE_LEVELS[False] if "flip" in name]
    assert levels(image, False, ()) == levels(image * 2, True, ()) == ("none",)
    assert levels(image, True, (8, 8)) == levels([(2, 3, 4, 5)], True, ()) == ("none",)
    assert {part for names in LEVELS.values() for name in names for part in name.split("+")} == {
        "none", *OPERATIONS}  # fmt: skip


def test_a_window_of_a_quarter_of_each_side_is_blank():
    x = numbered(50, 2, 16, 24)
    out = Augmentation("cutout", 0, CPU)(x, 3)
    blank = out == 0
    assert torch.equal(out[~blank], x[~blank])
    assert torch.equal(blank[:, 0], blank[:, 1]), "of all channels"
    rows, columns = blank[:, 0].any(2).sum(1), blank[:, 0].any(1).sum(1)
    assert (rows.max(), columns.max()) == (16 // CUTOUT, 24 // CUTOUT)
    assert torch.equal(blank[:, 0].sum((1, 2)), rows * columns), "in one piece"
    many = Augmentation("cutout", 0, CPU)(x[:1].expand(3000, -1, -1, -1), 3)[:, 0] == 0
    corners = Counter((*one.nonzero()[0].tolist(), *one.nonzero()[-1].tolist()) for one in many)
    assert len(corners) > 300, "16 x 24 places for its middle"
    assert 0.5 < many[:, 0].any(1).sum() / many[:, -1].any(1).sum() < 2, "cut off on all sides"
    assert 0.5 < many[:, :, 0].any(1).sum() / many[:, :, -1].any(1).sum() < 2


def test_signals_are_scaled_each_by_its_own_factor():
    x = numbered(200, 2, 9)
    factor = (Augmentation("scale", 0, CPU)(x, 1) / x).flatten(1)
    assert torch.allclose(factor, factor[:, :1].expand_as(factor), rtol=1e-5)
    assert 1 - SCALE <= float(factor.min()) < 0.85 < 1.15 < float(factor.max()) <= 1 + SCALE


def test_noise_has_the_size_of_its_column_and_leaves_categories_as_they_are():
    x = torch.stack([torch.randn(4000), 50 * torch.randn(4000)], 1)
    codes = torch.randint(9, (4000, 1)).float()
    made = Augmentation("noise", 0, CPU)
    change = made(torch.cat([x, codes], 1), 2) - torch.cat([x, codes], 1)
    assert torch.allclose(change[:, :2].std(0), NOISE * x.std(0), rtol=0.1)
    assert torch.allclose(change.mean(0), torch.zeros(3), atol=0.5)
    assert not change[:, 2].any()
    assert not torch.equal(made(x, 3), made(x, 2))
    signals = torch.randn(50, 2, 40) * torch.tensor([1.0, 50.0])[:, None]
    change = made(signals, 2) - signals
    assert torch.allclose(change.std((0, 2)), NOISE * signals.std((0, 2)), rtol=0.1)
    assert torch.allclose(change[:, 1].std(0), torch.tensor(5.0), rtol=0.5), "at every position"


def test_samples_and_targets_are_mixed_alike(tmp_path):
    made, x = Augmentation("mixup", 5, CPU), torch.randn(6, 1, 8)
    kept = {number: float(made.kept(number)) for number in range(200)}
    assert 0.5 <= min(kept.values()) < 0.6
    assert 0.95 < max(kept.values()) <= 1
    assert torch.equal(made.kept(torch.tensor([3])), made.kept(3))
    assert torch.allclose(made(x, 3), kept[3] * x + (1 - kept[3]) * x.flip(0), atol=1e-6)

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))

    task = make_task(image_data())
    job = make_job(net, 0, tmp_path, batches=1, augment="mixup")
    program = Kinds(task, FakeMachine().capture).program(job)
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    share = float(program._augment.kept(7))
    mean = nn.functional.cross_entropy
    wanted = share * mean(outputs, targets) + (1 - share) * mean(outputs, targets.flip(0))
    assert torch.allclose(program.loss(outputs, targets, 7), wanted)


def test_labels_are_smoothed_by_the_share_of_the_run(tmp_path):
    task = make_task(image_data())
    job = make_job(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), 0, tmp_path, batches=1,
                   label_smoothing=0.25)  # fmt: skip
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    wanted = nn.functional.cross_entropy(outputs, targets, label_smoothing=0.25)
    program = Kinds(task, FakeMachine().capture).program(job)
    assert torch.allclose(program.loss(outputs, targets, 0), wanted)
    assert torch.equal(task.loss(outputs, targets), nn.functional.cross_entropy(outputs, targets))
