"""The digits are cut as promised, and batches come in whole epochs that do not depend on E."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from epoch_order import epoch_order
from esper.leyline.errors import EsperError
from esper.tasks.digits import SHARES, load_digits_split, stratified_split

PARTS = ("train", "val_control", "val_score", "test")


@pytest.fixture(scope="module")
def split():
    return load_digits_split()


def test_parts_are_disjoint_and_complete(split):
    sources = np.concatenate([getattr(split, part).source_N for part in PARTS])
    assert sorted(sources.tolist()) == list(range(1797))


def test_parts_hold_the_images_they_say(split):
    data = load_digits()
    for name in PARTS:
        part = getattr(split, name)
        assert part.images_NCHW.shape[1:] == (1, 8, 8)
        assert (part.images_NCHW[:, 0] == data.images[part.source_N]).all()
        assert (part.labels_N == data.target[part.source_N]).all()


def test_every_class_is_divided_in_the_same_shares(split):
    per_class = np.bincount(load_digits().target)
    for name, share in SHARES.items():
        counts = np.bincount(getattr(split, name).labels_N, minlength=10)
        assert np.abs(counts - share * per_class).max() <= 1


def test_same_seed_same_cut_other_seed_other_cut(split):
    again, other = load_digits_split(), load_digits_split(split_seed=1)
    for name in PARTS:
        assert (getattr(again, name).source_N == getattr(split, name).source_N).all()
    assert set(other.test.source_N.tolist()) != set(split.test.source_N.tolist())


def test_loading_leaves_the_global_generator_alone():
    state = np.random.get_state()[1].copy()
    load_digits_split()
    assert (np.random.get_state()[1] == state).all()


def test_normalisation_comes_from_the_training_part_alone(split):
    train = split.normalised(split.train)
    assert train.dtype == np.float32
    assert abs(train.mean()) < 1e-4
    assert abs(train.std() - 1) < 1e-4
    expected = (split.test.images_NCHW - split.mean) / split.std
    assert np.allclose(split.normalised(split.test), expected, atol=1e-5)


def test_shares_that_are_not_a_whole_are_refused():
    with pytest.raises(EsperError, match="they must sum to 1"):
        stratified_split(np.zeros(10, dtype=np.int64), (0.5, 0.4), seed=0)


def test_an_epoch_shows_every_image_once():
    order_EL = epoch_order(seed=3, members=4, images=50, length=130)
    assert order_EL.shape == (4, 130)
    for start in (0, 50):
        assert (np.sort(order_EL[:, start : start + 50], axis=1) == np.arange(50)).all()
    assert len(np.unique(order_EL[0, 100:])) == 30


def test_order_does_not_depend_on_the_number_of_members():
    few, many = epoch_order(0, 2, 30, 100), epoch_order(0, 7, 30, 100)
    assert (few == many[:2]).all()


def test_orders_differ_between_members_epochs_seeds_and_rounds():
    order_EL = epoch_order(0, 2, 30, 60)
    assert (order_EL[0] != order_EL[1]).any()
    assert (order_EL[0, :30] != order_EL[0, 30:]).any()
    assert (epoch_order(1, 2, 30, 60) != order_EL).any()
    assert (epoch_order(0, 2, 30, 60, round_index=1) != order_EL).any()
