"""Made-up images follow from their seed alone, and there is something to learn in them."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from epoch_order import epoch_order
from esper.tasks.registry import get_task_spec
from esper.tasks.statistics import channel_statistics
from esper.tasks.synthetic_images import SyntheticImages, synthetic_spec
from esper.tasks.task_data import PARTS
from support import refused


@pytest.fixture(scope="module")
def data():
    return get_task_spec("synthetic").load()


@pytest.mark.parametrize("part", PARTS)
def test_same_seed_same_data_other_seed_other_data(data, part):
    again, other = synthetic_spec().load(), synthetic_spec(seed=1).load()
    assert (getattr(again, part).inputs == getattr(data, part).inputs).all()
    assert (getattr(again, part).labels == getattr(data, part).labels).all()
    assert (getattr(other, part).inputs != getattr(data, part).inputs).any()
    assert (getattr(other, part).labels != getattr(data, part).labels).any()


def test_a_larger_training_part_leaves_the_others_alone(data):
    larger = synthetic_spec(train=1500).load()
    assert (larger.test.inputs == data.test.inputs).all()


def test_loading_leaves_the_global_generator_alone():
    state = np.random.get_state()[1].copy()
    synthetic_spec().load()
    assert (np.random.get_state()[1] == state).all()


def test_no_image_is_in_two_parts(data):
    images = [image.tobytes() for name in PARTS for image in getattr(data, name).inputs]
    assert len(set(images)) == len(images) == 1600


def test_every_class_is_equally_frequent_in_every_part(data):
    for name in PARTS:
        counts = np.bincount(getattr(data, name).labels, minlength=10)
        assert np.ptp(counts) <= 1
        assert (np.diff(getattr(data, name).labels) < 0).any(), "sorted by class"


def test_channel_statistics_are_those_of_numpy():
    data = synthetic_spec(channels=3, size=6, train=70).load()
    x = data.train.inputs.astype(np.float64)
    mean_C, std_C = channel_statistics(data.train.inputs)
    assert np.allclose(mean_C, x.mean(axis=(0, 2, 3)))
    assert np.allclose(std_C, x.std(axis=(0, 2, 3)))
    assert np.allclose(data.normalised(data.train).mean(axis=(0, 2, 3)), 0, atol=1e-4)


def test_a_linear_probe_beats_chance_clearly(data):
    x, y = data.normalised(data.train).reshape(1000, -1), data.train.labels
    probe = LogisticRegression(max_iter=200).fit(x, y)
    accuracy = probe.score(data.normalised(data.test).reshape(200, -1), data.test.labels)
    assert accuracy > 0.5


def test_labels_without_their_images_teach_nothing(data):
    """The probe's success above comes from the images: with labels shuffled it guesses."""
    x = data.normalised(data.train).reshape(1000, -1)
    shuffled = np.random.default_rng(0).permutation(data.train.labels)
    probe = LogisticRegression(max_iter=200).fit(x, shuffled)
    assert probe.score(data.normalised(data.test).reshape(200, -1), data.test.labels) < 0.25


def test_its_own_host_learns_it_with_its_own_settings():
    spec = synthetic_spec(base_channels=4, episode_length=10)
    data = spec.load()
    population = spec.population(members=2)
    x, y = (torch.from_numpy(a) for a in (data.normalised(data.train), data.train.labels))
    length = spec.episode_samples // spec.batch_size * spec.batch_size
    order = torch.from_numpy(epoch_order(0, 2, len(y), length))
    for at in order.split(spec.batch_size, dim=1):
        population.train_batch(x[at], y[at])
    held_out = torch.from_numpy(data.normalised(data.val_score))[None]
    labels = torch.from_numpy(data.val_score.labels)[None]
    accuracy = population.evaluate(held_out, labels).correct_R / labels.shape[1]
    assert accuracy.min() > 3 * spec.chance


@pytest.mark.parametrize(
    ("classes", "channels", "size", "blocks"), [(2, 1, 1, 1), (3, 2, 5, 2), (7, 3, 33, 4)]
)
def test_any_shape(classes, channels, size, blocks):
    spec = synthetic_spec(
        classes, channels, size, train=64, validation=classes, n_blocks=blocks, kernel_size=1
    )
    data = spec.load()
    assert data.train.inputs.shape == (64, channels, size, size)
    x = torch.from_numpy(data.normalised(data.test))[None]
    assert spec.population(1).forward(x).shape == (1, classes, classes)


def test_images_longer_than_a_chunk_are_whole():
    data = synthetic_spec(size=4, train=5000, validation=10).load()
    assert data.train.inputs.reshape(5000, -1).std(axis=1).min() > 0


def test_a_batch_larger_than_the_data_is_one_line():
    assert "larger than the 50 training samples" in refused(synthetic_spec(train=50).load)


def test_classes_differ_in_pattern_not_only_in_brightness(data):
    x, y = data.train.inputs.astype(np.float64), data.train.labels
    spread = [x[y == label].mean(axis=0).std() for label in range(10)]
    assert min(spread) > 12  # noise alone leaves 48 / sqrt(100) = 4.8


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"size": 0}, "size=0"), ({"classes": 1}, "classes=1"), ({"validation": 1}, "validation=1")],
)
def test_sizes_that_cannot_be_are_one_line(changes, words):
    sizes = {"classes": 3, "channels": 1, "size": 4, "train": 12, "validation": 6}
    assert words in refused(lambda: SyntheticImages(**sizes | changes))
