"""Figures and their intervals: closed forms, how often intervals hold the truth, and rliable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from esper.leyline import EsperError, statistics
from esper.leyline.statistics import (
    Estimate,
    improvement_estimate,
    interquartile_estimate,
    mean_estimate,
    paired_difference,
    student_estimate,
    t_interval,
    unpaired_difference,
)

ROWS = arrays(np.float64, st.integers(2, 30), elements=st.floats(-100, 100, width=32))


def draws(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# ---- closed forms ------------------------------------------------------------------------------


def test_interval_is_that_of_students_t():
    mean, low, high = t_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    assert mean == 2.5
    # t(0.975, 3) = 3.1824; standard error = 1.29099 / 2
    assert np.allclose([low, high], [2.5 - 2.05426, 2.5 + 2.05426], atol=1e-4)
    found = student_estimate(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (found.value, found.low, found.high) == (mean, low, high)


def test_one_value_has_no_interval():
    mean, low, high = t_interval(np.array([3.0]))
    assert mean == 3.0
    assert np.isnan([low, high]).all()
    one = np.array([3.0])
    estimates = (interquartile_estimate(one), mean_estimate(one), student_estimate(one))
    for found in (*estimates, improvement_estimate(one, one)):
        assert np.isfinite(found.value)
        assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),
        ([1.0, 2.0, 9.0], 4.0),  # floor(3 / 4) = 0: nothing is left out
        ([-100.0, 1.0, 2.0, 100.0], 1.5),
        (list(range(8)), 3.5),
        ([0.0] * 5 + list(range(10)) + [1000.0] * 5, 4.5),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values, middle):
    shuffled = np.random.default_rng(0).permutation(np.array(values, dtype=np.float64))
    assert interquartile_estimate(shuffled).value == pytest.approx(middle, abs=1e-12)


def test_the_interquartile_mean_pools_all_strata():
    assert interquartile_estimate(np.array([[0.0, 10.0], [1.0, 1000.0]])).value == 5.5


@pytest.mark.parametrize("rows", [1, 2, 7, 20])
def test_separated_samples_improve_for_certain_and_equal_ones_half_the_time(rows):
    low, high = draws(0, rows), 100 + draws(1, rows)
    assert improvement_estimate(high, low).value == 1.0
    assert improvement_estimate(low, high).value == 0.0
    assert improvement_estimate(low, low).value == 0.5
    if rows > 1:
        assert improvement_estimate(high, low) == Estimate(1.0, 1.0, 1.0)


def test_normal_samples_improve_as_often_as_their_distance_says():
    """P(X > Y) of N(d, 1) and N(0, 1) is Phi(d / sqrt 2)."""
    from scipy.stats import norm

    found = improvement_estimate(0.8 + draws(0, 400), draws(1, 400))
    truth = norm.cdf(0.8 / np.sqrt(2))
    assert found.low < truth < found.high
    assert found.value == pytest.approx(truth, abs=0.04)


@settings(max_examples=30)
@given(ROWS, ROWS)
def test_the_probability_is_the_share_of_pairs_that_win(ours, theirs):
    pairs = [(a > b) + 0.5 * (a == b) for a in ours for b in theirs]
    there = improvement_estimate(ours, theirs).value
    back = improvement_estimate(theirs, ours).value
    assert there == pytest.approx(np.mean(pairs))
    assert there + back == pytest.approx(1.0)


def test_a_paired_difference_sees_what_the_runs_share():
    """Runs differ a thousand times more than the two do."""
    shared = 1000 * draws(0, 20)
    found = paired_difference(shared + 1.0 + 0.1 * draws(1, 20), shared)
    for estimate in (found.student, found.bootstrap):
        assert 0.9 < estimate.low < estimate.value < estimate.high < 1.1
    assert (found.above, found.equal, found.below) == (20, 0, 0)


def test_nothing_differs_from_itself():
    values = draws(0, 20)
    found = paired_difference(values, values)
    assert found.student == found.bootstrap == Estimate(0.0, 0.0, 0.0)
    assert (found.above, found.equal, found.below) == (0, 20, 0)


def test_for_many_runs_the_bootstrap_comes_to_students_t():
    values = draws(3, 2000)
    student, bootstrap = student_estimate(values), mean_estimate(values)
    width = student.high - student.low
    assert abs(bootstrap.low - student.low) < 0.03 * width
    assert abs(bootstrap.high - student.high) < 0.03 * width


# ---- promises ----------------------------------------------------------------------------------


@settings(max_examples=6)
@given(ROWS)
def test_the_same_numbers_give_the_same_interval_wherever_they_are_asked(values):
    first = interquartile_estimate(values)
    mean_estimate(draws(0, 5))  # what is asked in between does not matter
    assert interquartile_estimate(values.copy()) == first
    assert first.low <= first.high
    assert values.min() - 1e-9 <= first.low
    assert first.high <= values.max() + 1e-9


def test_chunks_only_save_memory(monkeypatch):
    values = draws(0, 12, 2)
    whole = interquartile_estimate(values), improvement_estimate(values, values + 0.1)
    monkeypatch.setattr(statistics, "_CHUNK", 24 * 500)
    parts = interquartile_estimate(values), improvement_estimate(values, values + 0.1)
    assert parts[0] == whole[0]
    for a, b in zip((whole[1].low, whole[1].high), (parts[1].low, parts[1].high), strict=True):
        assert a == pytest.approx(b, abs=0.02)


def test_runs_are_drawn_within_their_stratum():
    """Strata far apart, no spread inside: resampling cannot move anything."""
    values = np.array([[0.0, 100.0]] * 6)
    assert mean_estimate(values) == Estimate(50.0, 50.0, 50.0)
    assert interquartile_estimate(values) == Estimate(50.0, 50.0, 50.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_hidden_by_trimming(bad):
    values = np.append(draws(0, 19), bad)
    for found in (interquartile_estimate(values), improvement_estimate(values, draws(1, 20))):
        assert np.isnan([found.value, found.low, found.high]).all()
    difference = paired_difference(values, draws(1, 20))
    assert not np.isfinite(difference.student.value)
    assert np.isnan([difference.bootstrap.low, difference.bootstrap.high]).all()


def coverage(estimate, truth: float, worlds: int = 400, runs: int = 20) -> float:
    """Share of worlds whose interval holds the truth."""
    found = [estimate(np.random.default_rng(seed).normal(size=runs)) for seed in range(worlds)]
    return float(np.mean([each.low <= truth <= each.high for each in found]))


def test_intervals_hold_the_truth_about_as_often_as_they_say(monkeypatch):
    """At 20 runs the percentile bootstrap is a little too sure; Student's t is right."""
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    # 400 worlds: two standard errors of a share of 0.95 are 0.022
    assert coverage(student_estimate, 0.0) == pytest.approx(0.95, abs=0.025)
    assert 0.89 < coverage(mean_estimate, 0.0) < 0.965
    assert 0.87 < coverage(interquartile_estimate, 0.0) < 0.97


# ---- rliable -----------------------------------------------------------------------------------


def rliable_estimate(scores, metric, reps: int = 4000) -> Estimate:
    library = pytest.importorskip("rliable.library", reason="rliable is in the extra test-extra")
    np.random.seed(0)  # rliable draws from numpy's global generator
    values, ends = library.get_interval_estimates({"it": scores}, metric, reps=reps)
    return Estimate(*(float(np.squeeze(x)) for x in (values["it"], *ends["it"])))


def agree(ours: Estimate, theirs: Estimate) -> None:
    """Equal figures; ends as near as theirs can be known from their resamples."""
    assert ours.value == pytest.approx(theirs.value, abs=1e-12)
    width = theirs.high - theirs.low
    assert width > 0
    assert abs(ours.low - theirs.low) < 0.06 * width
    assert abs(ours.high - theirs.high) < 0.06 * width


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(20, 1), (21, 1), (10, 3)])
def test_interquartile_means_agree_with_rliable(shape):
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is in the extra test-extra")
    values = np.random.default_rng(5).gamma(2.0, size=shape)
    theirs = rliable_estimate(values, lambda x: np.array([metrics.aggregate_iqm(x)]))
    agree(interquartile_estimate(values), theirs)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(20, 1), (10, 3)])
def test_means_agree_with_rliable(shape):
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is in the extra test-extra")
    values = np.random.default_rng(5).gamma(2.0, size=shape)
    theirs = rliable_estimate(values, lambda x: np.array([metrics.aggregate_mean(x)]))
    agree(mean_estimate(values), theirs)


@pytest.mark.slow
@pytest.mark.parametrize("strata", [1, 3])
def test_probabilities_of_improvement_agree_with_rliable(strata):
    metrics = pytest.importorskip("rliable.metrics", reason="rliable is in the extra test-extra")
    ours = np.round(0.4 + draws(0, 20, strata), 1)  # rounded: there are ties
    theirs = np.round(draws(1, 16, strata), 1)
    expected = rliable_estimate(
        (ours, theirs), lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), 3000
    )
    agree(improvement_estimate(ours, theirs), expected)


def test_an_unpaired_difference_is_welchs():
    from scipy.stats import ttest_ind

    ours, theirs = np.array([1.0, 2.0, 4.0, 4.5]), np.array([0.5, 0.7, 0.2])
    found = unpaired_difference(ours, theirs)
    wanted = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    assert found.value == pytest.approx(ours.mean() - theirs.mean())


def test_one_run_alone_has_an_unpaired_difference_without_an_interval():
    found = unpaired_difference(np.array([1.0]), np.array([0.5, 0.7]))
    assert found.value == pytest.approx(0.4)
    assert np.isnan(found.low)
    equal = unpaired_difference(np.array([1.0, 1.0]), np.array([0.5, 0.5]))
    assert (equal.low, equal.high) == (0.5, 0.5)


def test_pairs_are_of_the_same_runs():
    with pytest.raises(EsperError, match="3 and 1 runs"):
        paired_difference(np.zeros(3), np.zeros(1))
