"""The tracker: slopes, plateaus and stabilisation of each member, whatever the others do."""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from esper.leyline import TrainingSignals
from esper.leyline.signals import HISTORY_LENGTH
from esper.tamiyo import SignalConfig, SignalTracker, TrackedSignals
from esper.tamiyo.signals import slope
from support import refused

CONFIG = SignalConfig(
    plateau_tolerance=0.25, plateau_patience=3, steep_descent=0.25, stabilisation_steps=2
)
LOSSES = st.one_of(
    st.integers(0, 16).map(lambda quarters: quarters / 4),
    st.floats(0, 4, width=32),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)


def sequences(steps: int = 12, members: int = 3) -> st.SearchStrategy[np.ndarray]:
    shape = st.tuples(st.integers(1, steps), st.integers(1, members))
    return npst.arrays(np.float32, shape, elements=LOSSES)


def follow(tracker: SignalTracker, val_TE: np.ndarray) -> list[TrackedSignals]:
    """Feed a sequence; train losses are twice the validation losses, accuracies minus them."""
    return [tracker.update(2 * val_E, val_E, -val_E) for val_E in val_TE]


class Reference:
    """The rules for one member, one step at a time."""

    def __init__(self, config: SignalConfig) -> None:
        self.config = config
        self.losses: list[float] = []
        self.reference, self.lowest = math.inf, math.inf
        self.plateau = self.calm = 0
        self.stabilised = False

    def update(self, loss: float) -> None:
        self.losses.append(loss)
        if not math.isfinite(loss):
            self.plateau += 1
            self.calm = 0
            return
        if loss < self.reference - self.config.plateau_tolerance:
            self.reference, self.plateau = loss, 0
        else:
            self.plateau += 1
        steep = loss < self.lowest and (
            self.lowest - loss >= self.config.steep_descent * abs(self.lowest)
        )
        self.calm = 0 if steep or math.isinf(self.lowest) else self.calm + 1
        self.lowest = min(self.lowest, loss)
        self.stabilised |= self.calm >= self.config.stabilisation_steps

    def slope(self) -> float:
        recent = self.losses[-HISTORY_LENGTH:]
        known = [(x, y) for x, y in enumerate(recent) if math.isfinite(y)]
        return np.polyfit(*zip(*known, strict=True), 1)[0] if len(known) > 1 else 0.0


@given(sequences())
@settings(max_examples=60)
def test_members_are_followed_as_if_alone(val_TE: np.ndarray):
    tracker = SignalTracker(val_TE.shape[1], CONFIG)
    references = [Reference(CONFIG) for _ in range(val_TE.shape[1])]
    for seen, val_E in zip(follow(tracker, val_TE), val_TE, strict=True):
        for member, reference in enumerate(references):
            reference.update(float(val_E[member]))
            assert seen.plateau_steps_E[member] == reference.plateau
            assert seen.plateaued_E[member] == (reference.plateau >= CONFIG.plateau_patience)
            assert seen.stabilised_E[member] == reference.stabilised
            assert seen.val_loss_slope_E[member] == pytest.approx(reference.slope(), abs=1e-5)


@given(npst.arrays(np.float32, (4, HISTORY_LENGTH), elements=st.floats(-100, 100, width=32)))
def test_slope_is_that_of_polyfit(history_EL: np.ndarray):
    expected = np.polyfit(np.arange(HISTORY_LENGTH), history_EL.T.astype(np.float64), 1)[0]
    assert slope(history_EL) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_slope_of_a_line_is_exact():
    lines = np.array([[5, 4, 3, 2, 1], [0, 2, 4, 6, 8], [np.nan, np.nan, np.nan, np.nan, 3]])
    assert slope(lines.astype(np.float32)).tolist() == [-1.0, 2.0, 0.0]


def test_each_history_gets_its_own_metric():
    tracker = SignalTracker(1)
    seen = follow(tracker, np.arange(1, 8, dtype=np.float32)[:, None])
    assert seen[-1].val_loss_history_EL.tolist() == [[3, 4, 5, 6, 7]]
    assert seen[-1].train_loss_history_EL.tolist() == [[6, 8, 10, 12, 14]]
    assert seen[-1].val_accuracy_history_EL.tolist() == [[-3, -4, -5, -6, -7]]
    slopes = (seen[-1].train_loss_slope_E, seen[-1].val_loss_slope_E, seen[-1].val_accuracy_slope_E)
    assert [float(each[0]) for each in slopes] == [2.0, 1.0, -1.0]
    first = seen[1].val_loss_history_EL[0]
    assert np.isnan(first[:3]).all()
    assert first[3:].tolist() == [1, 2]


def test_slow_progress_adds_up_to_an_improvement():
    """Three steps of 0.1 make 0.3, which is more than the tolerance."""
    tracker = SignalTracker(1, CONFIG)
    losses = np.array([2.0, 1.9, 1.8, 1.7, 1.7], dtype=np.float32)[:, None]
    assert [int(s.plateau_steps_E[0]) for s in follow(tracker, losses)] == [0, 1, 2, 0, 1]


def test_descent_by_exactly_the_share_is_steep():
    seen = follow(SignalTracker(1, CONFIG), np.array([[4.0], [3.0], [2.25], [2.25], [2.25]]))
    assert [bool(s.stabilised_E[0]) for s in seen] == [False] * 4 + [True]


def test_stabilised_latches_until_reset():
    tracker = SignalTracker(2, CONFIG)
    halves = np.array([4, 2, 1, 1, 1, 0.1, 0.01], dtype=np.float32)
    seen = follow(tracker, np.stack([halves, 0.5 ** np.arange(7, dtype=np.float32)], axis=1))
    stable = [s.stabilised_E.tolist() for s in seen]
    assert [member for member, _ in stable] == [False] * 4 + [True] * 3
    assert not any(member for _, member in stable)
    tracker.reset()
    assert not follow(tracker, np.ones((1, 2)))[0].stabilised_E.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_member_leaves_the_others_alone(bad: float):
    val_TE = np.random.default_rng(3).uniform(0, 3, (9, 3)).astype(np.float32)
    poisoned = val_TE.copy()
    poisoned[2:5, 1] = bad
    clean = follow(SignalTracker(3, CONFIG), val_TE)
    dirty = follow(SignalTracker(3, CONFIG), poisoned)
    for before, after in zip(clean, dirty, strict=True):
        for field in fields(TrackedSignals):
            ours, theirs = getattr(before, field.name), getattr(after, field.name)
            assert np.array_equal(ours[[0, 2]], theirs[[0, 2]], equal_nan=True)
        assert np.isfinite(after.val_loss_slope_E).all()
    steps = [int(after.plateau_steps_E[1]) for after in dirty]
    assert np.diff(steps[1:5]).tolist() == [1] * 3


def test_never_finite_is_never_an_improvement():
    seen = follow(SignalTracker(1, CONFIG), np.full((4, 1), np.nan, dtype=np.float32))
    assert [int(s.plateau_steps_E[0]) for s in seen] == [1, 2, 3, 4]
    assert not seen[-1].stabilised_E.any()


def test_largest_losses_have_finite_slopes():
    largest = np.finfo(np.float32).max
    history = np.array([[np.nan, np.nan, np.nan, -largest, largest]], dtype=np.float32)
    assert slope(history).tolist() == [largest]


def test_reset_of_some_members_starts_these_over():
    val_TE = np.random.default_rng(1).uniform(0, 3, (14, 3)).astype(np.float32)
    whole, cut = SignalTracker(3, CONFIG), SignalTracker(3, CONFIG)
    fresh = SignalTracker(3, CONFIG)
    follow(whole, val_TE[:7])
    follow(cut, val_TE[:7])
    cut.reset(np.array([False, True, False]))
    later = zip(*(follow(t, val_TE[7:]) for t in (whole, cut, fresh)), strict=True)
    for kept, mixed, anew in later:
        for field in fields(TrackedSignals):
            expected = getattr(kept, field.name).copy()
            expected[1] = getattr(anew, field.name)[1]
            assert np.array_equal(getattr(mixed, field.name), expected, equal_nan=True)


def test_what_was_returned_is_not_changed_later():
    tracker = SignalTracker(1)
    first = tracker.update(*np.array([[1.0], [1.0], [0.0]]))
    copies = {f.name: getattr(first, f.name).copy() for f in fields(first)}
    follow(tracker, np.array([[3.0], [2.0], [0.5]]))
    tracker.reset(np.array([True]))
    for name, value in copies.items():
        assert np.array_equal(getattr(first, name), value, equal_nan=True)


def test_tracker_owns_fields_of_the_observation():
    observed = {field.name for field in fields(TrainingSignals)}
    assert {field.name for field in fields(TrackedSignals)} <= observed


def test_settings_and_masks_that_cannot_be_meant_are_one_line():
    assert "plateau_patience=0" in refused(lambda: SignalConfig(plateau_patience=0))
    assert "steep_descent=nan" in refused(lambda: SignalConfig(steep_descent=math.nan))
    tracker = SignalTracker(3)
    assert "expected a bool mask" in refused(lambda: tracker.reset(np.array([0, 1])))
