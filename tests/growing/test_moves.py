"""Recipes near a recipe: each change by itself, in its order, within its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.growing.moves import BATCH_LIMITS, DECAY_LIMITS, DECAY_STEP, RATE_LIMITS, Space
from search_support import RATES, RECIPE

LEVELS = ("none", "shift", "flip+shift", "flip+shift+cutout")
DECAYING = replace(RECIPE, weight_decay=0.01)
FREE = Space(DECAYING, RATES, augments=LEVELS, smoothings=(0.0, 0.1), decays=True, batch_sizes=True)


def test_neighbouring_rates_come_first_and_are_the_first_ones_where_these_are_as_good_as_the_same():
    assert [one.lr for one in FREE.other_rates(RECIPE)] == [RATES[2], RATES[0], RATES[0], RATES[2]]
    between = [one.lr for one in FREE.other_rates(replace(RECIPE, lr=0.09))]
    assert between == [0.27, RATES[2], *RATES]


@pytest.mark.parametrize(
    ("lr", "up", "down"), [(RATE_LIMITS["adamw"][0], True, False), (0.5, False, True)]
)
def test_no_rate_is_beyond_the_limits(lr, up, down):
    near = [one.lr for one in Space(RECIPE, (lr,)).other_rates(replace(RECIPE, lr=lr))]
    assert near == [lr * 3] * up + [pytest.approx(lr / 3, rel=1e-3)] * down


@pytest.mark.parametrize(
    ("here", "others", "next_one"),
    [(0, [1, 2, 3], [1]), (1, [2, 0, 3], [2]), (2, [3, 1, 0], [3]), (3, [2, 1, 0], [])],
)
def test_other_strengths_come_nearest_first_and_stronger_before_weaker(here, others, next_one):
    recipe = replace(DECAYING, augment=LEVELS[here])
    assert [one.augment for one in FREE.other_augments(recipe)] == [LEVELS[n] for n in others]
    assert [one.augment for one in FREE.stronger(recipe)] == [LEVELS[n] for n in next_one]


def test_the_regularised_are_every_other_strength_more_decay_and_smoothing_one_change_each():
    made = list(FREE.regularised(replace(DECAYING, augment="shift", label_smoothing=0.1)))
    named = [(one.augment, one.weight_decay, one.label_smoothing) for one in made]
    assert named == [
        ("flip+shift", 0.01, 0.1), ("none", 0.01, 0.1), ("flip+shift+cutout", 0.01, 0.1),
        ("shift", 0.01 * DECAY_STEP, 0.1), ("shift", 0.01, 0.0),
    ]  # fmt: skip
    assert list(Space(RECIPE, RATES).regularised(RECIPE)) == []


@pytest.mark.parametrize(
    ("decay", "others"),
    [
        (0.01, [0.05, 0.002]),
        (DECAY_LIMITS[1], [0.2]),
        (DECAY_LIMITS[1] / DECAY_STEP, [1.0, 0.04]),
        (DECAY_LIMITS[0], [5e-6]),
        (DECAY_LIMITS[0] * DECAY_STEP, [2.5e-5, 1e-6]),
        (0.0, []),
    ],
)
def test_decay_is_raised_then_lowered_up_to_its_limits(decay, others):
    made = FREE._other_decays(replace(RECIPE, weight_decay=decay))
    assert [one.weight_decay for one in made] == others


@pytest.mark.parametrize(
    ("size", "others"),
    [
        (8, [16]),
        (16, [32, 8]),
        (BATCH_LIMITS[1] // 2, [BATCH_LIMITS[1], BATCH_LIMITS[1] // 4]),
        (BATCH_LIMITS[1], [BATCH_LIMITS[1] // 2]),
    ],
)
def test_other_batch_sizes_are_twice_and_half_as_large_of_as_many_samples(size, others):
    usual = replace(RECIPE, batch_size=size, batches=96)
    made = list(Space(usual, RATES, batch_sizes=True)._other_batch_sizes(usual))
    assert [(one.batch_size, one.batches) for one in made] == [
        (other, 96 * size // other) for other in others
    ]


def test_a_batch_has_no_more_samples_than_there_are():
    usual = replace(RECIPE, batch_size=16, batches=96)
    space = Space(usual, RATES, batch_sizes=True, epoch=1)
    assert [one.batch_size for one in space._other_batch_sizes(usual)] == [8]


def test_lengths_of_rounded_runs_are_the_same_and_others_are_not():
    for length in (1.0, 12.4, 12.5, 36.4, 1000.3):
        assert FREE.lasts(FREE.lasting(RECIPE, length), length)
    for length in (40, 1000):
        assert not FREE.lasts(replace(RECIPE, batches=length), 1.05 * length)
        assert not FREE.lasts(replace(RECIPE, batches=length), 0.95 * length)
    twice = replace(RECIPE, batch_size=2 * RECIPE.batch_size, batches=50)
    assert FREE.length(twice) == 100
    assert FREE.lasting(twice, 30).batches == 15


def test_what_the_user_has_settled_is_not_changed_and_the_rest_is():
    generator = np.random.default_rng(0)
    fixed = Space(RECIPE, RATES, more_rates=False)
    assert {fixed.near(RECIPE, generator).lr for _ in range(50)} == set(RATES) - {RECIPE.lr}
    assert Space(RECIPE, (RECIPE.lr,), more_rates=False).near(RECIPE, generator) is None
    recipe = replace(RECIPE, weight_decay=0.01)
    free = Space(recipe, RATES, augments=LEVELS[:3], smoothings=(0.0, 0.1), decays=True,
                 batch_sizes=True)  # fmt: skip
    near = [free.near(recipe, generator) for _ in range(200)]
    for name in ("lr", "augment", "label_smoothing", "weight_decay", "batch_size"):
        assert {getattr(one, name) for one in near} > {getattr(recipe, name)}, name
    kept = ("lr", "augment", "label_smoothing", "weight_decay", "batch_size")
    assert {sum(getattr(one, n) != getattr(recipe, n) for n in kept) for one in near} == {1}
    assert {one.batches * one.batch_size for one in near} == {recipe.batches * recipe.batch_size}


@given(size=st.integers(1, 1024), length=st.integers(1, 20_000))
def test_a_length_is_the_same_for_every_batch_size(size, length):
    space = Space(RECIPE, RATES)
    made = space.lasting(replace(RECIPE, batch_size=size), length)
    assert made.batches >= 1
    whole = size / RECIPE.batch_size
    assert abs(space.length(made) - length) <= max(0.5 * whole, whole * (made.batches == 1))
    assert space.lasts(space.lasting(RECIPE, length), length)
