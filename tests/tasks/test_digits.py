"""The digits are cut as promised, and batches come in whole epochs that do not depend on E."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from epoch_order import epoch_order
from esper.tasks.digits import SHARES, _split_indices, load_digits_data


@pytest.fixture(scope="module")
def data():
    return load_digits_data()


def test_parts_are_disjoint_and_complete():
    indices = _split_indices(np.asarray(load_digits().target))
    assert sorted(np.concatenate(indices).tolist()) == list(range(1797))


def test_parts_hold_the_images_they_say(data):
    whole = load_digits()
    for name, index in zip(SHARES, _split_indices(np.asarray(whole.target)), strict=True):
        part = getattr(data, name)
        assert part.inputs.shape[1:] == (1, 8, 8)
        assert (part.inputs[:, 0] == whole.images[index]).all()
        assert (part.labels == whole.target[index]).all()


def test_every_class_is_divided_in_the_same_shares(data):
    per_class = np.bincount(load_digits().target)
    for name, share in SHARES.items():
        counts = np.bincount(getattr(data, name).labels, minlength=10)
        assert np.abs(counts - share * per_class).max() <= 1


def test_the_cut_is_always_the_same(data):
    again = load_digits_data()
    for name in SHARES:
        assert (getattr(again, name).inputs == getattr(data, name).inputs).all()


def test_loading_leaves_the_global_generator_alone():
    state = np.random.get_state()[1].copy()
    load_digits_data()
    assert (np.random.get_state()[1] == state).all()


def test_normalisation_comes_from_the_training_part_alone(data):
    train = data.normalised(data.train)
    assert train.dtype == np.float32
    assert abs(train.mean()) < 1e-4
    assert abs(train.std() - 1) < 1e-4
    expected = (data.test.inputs - data.mean) / data.std
    assert np.allclose(data.normalised(data.test), expected, atol=1e-5)


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
