"""Running statistics match all data seen, and change only between rollouts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import EsperError
from esper.simic.control import ObservationNormalizer, RewardNormalizer, RunningMeanStd
from esper.simic.control.normalizers import OBSERVATION_LIMIT
from ppo_support import SPEC, random_obs


@settings(max_examples=50)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 1000))
def test_batches_merge_to_the_statistics_of_all(sizes, seed):
    rng = np.random.default_rng(seed)
    batches = [rng.normal(size=(n, 3)) * 10 + 100 for n in sizes]
    seen = RunningMeanStd(3)
    for batch in batches:
        seen.update(batch)
    everything = np.concatenate(batches)
    assert seen.count == len(everything)
    assert seen.mean_D == pytest.approx(everything.mean(axis=0), rel=1e-12)
    assert seen.variance_D == pytest.approx(everything.var(axis=0), rel=1e-9, abs=1e-9)


def test_a_large_offset_costs_no_precision():
    """The naive sum of squares would lose it all."""
    seen = RunningMeanStd(1)
    for x in (1e9 + 1, 1e9 + 2, 1e9 + 3):
        seen.update(np.array([[x]]))
    assert float(seen.variance_D[0]) == pytest.approx(2 / 3, rel=1e-6)


def test_what_does_not_vary_is_not_divided():
    seen = RunningMeanStd(2)
    seen.update(np.array([[5.0, 1.0], [5.0, 3.0]]))
    assert seen.deviation_D.tolist() == [1.0, 1.0]
    assert RunningMeanStd(1).deviation_D.tolist() == [1.0]


def test_a_value_that_is_not_finite_is_refused():
    with pytest.raises(EsperError, match="not finite"):
        RunningMeanStd(1).update(np.array([[np.inf]]))


def test_observations_come_out_with_mean_0_and_deviation_1():
    rng = np.random.default_rng(0)
    it = ObservationNormalizer(SPEC)
    obs = random_obs(rng, 500)
    obs.global_EG[:] = obs.global_EG * 0.7 + 3
    it.observe(obs)
    assert it.normalize(obs).global_EG == pytest.approx(obs.global_EG, abs=1e-5)  # not yet
    it.commit()
    out = it.normalize(obs)
    assert out.global_EG.mean(axis=0) == pytest.approx(0, abs=1e-4)
    assert out.global_EG.std(axis=0) == pytest.approx(1, abs=1e-4)
    assert out.slot_ESF.mean(axis=(0, 1)) == pytest.approx(0, abs=1e-4)
    assert out.global_EG.dtype == out.slot_ESF.dtype == np.float32
    assert out.blueprint_ES is obs.blueprint_ES


def test_outliers_are_cut_off():
    it = ObservationNormalizer(SPEC)
    obs = random_obs(np.random.default_rng(0), 50)
    it.observe(obs)
    it.commit()
    obs.global_EG[0, 0] = 1e6
    assert it.normalize(obs).global_EG[0, 0] == OBSERVATION_LIMIT


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_rewards_are_divided_by_the_deviation_of_the_return(gamma):
    rng = np.random.default_rng(0)
    reward, ended = rng.normal(size=(20, 3)) + 1, rng.random((20, 3)) < 0.1
    returns, running = np.zeros((20, 3)), np.zeros(3)
    for t in range(20):
        for e in range(3):
            running[e] = gamma * running[e] + reward[t, e]
            returns[t, e] = running[e]
            running[e] = 0.0 if ended[t, e] else running[e]
    it = RewardNormalizer(gamma)
    it.update(reward, ended)
    assert it.scale == pytest.approx(returns.std())
    assert it.normalize(reward) == pytest.approx(reward / returns.std())
    assert it.return_E == pytest.approx(running)


def test_signs_and_ratios_of_rewards_survive():
    it = RewardNormalizer(1.0)
    it.update(np.array([[5.0], [7.0]]), np.zeros((2, 1), dtype=bool))
    out = it.normalize(np.array([[-2.0], [4.0], [0.0]]))[:, 0]
    assert out[0] < 0 < out[1]
    assert out[1] / out[0] == pytest.approx(-2.0)
    assert out[2] == 0.0


def test_rewards_that_never_vary_stay_as_they_are():
    it = RewardNormalizer(1.0)
    it.update(np.ones((1, 4)), np.ones((1, 4), dtype=bool))
    assert it.normalize(np.ones((1, 4))).tolist() == [[1.0] * 4]


def test_another_number_of_members_begins_anew():
    it = RewardNormalizer(1.0)
    none = np.zeros((2, 3), dtype=bool)
    it.update(np.ones((2, 3)), none)
    it.update(np.ones((2, 5)), np.zeros((2, 5), dtype=bool))
    assert it.return_E.tolist() == [2.0] * 5
