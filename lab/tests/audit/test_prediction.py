"""Does predict-then-act plan and stop well where the best is known?"""

from __future__ import annotations

import numpy as np
import pytest

from audit_synthetic import made_audit, overfitting_audit
from esper.leyline.context import Range
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants
from esper_lab.audit.bench import Bench, SimulatedEpisodes
from esper_lab.audit.cases import TermsSpec
from esper_lab.audit.leaderboard import BUILT_IN, run_policy
from esper_lab.audit.policies import PlanOnly, fit_planner
from esper_lab.audit.prediction import PredictionSettings, PredictThenAct

TRAIN, JUDGED = np.arange(0, 24), np.arange(24, 36)
CONSTANTS = ScoreConstants(c_p=0.04, c_m=0.0, c_f=0.04)
TWO = PredictionSettings(members=2, rows=6000)


@pytest.fixture(scope="module")
def bench():
    audit = made_audit(contexts=36, noise=0.01, constants=CONSTANTS)
    return Bench(audit, TermsSpec(capped=0.25))


@pytest.fixture(scope="module")
def predictor(bench):
    return PredictThenAct(bench, TRAIN, TWO)


def test_it_beats_the_table_where_context_and_curve_matter(bench, predictor):
    table = PlanOnly(fit_planner("table", bench, TRAIN))
    ours = run_policy(bench, predictor, 480, seed=0, contexts=JUDGED)
    theirs = run_policy(bench, table, 480, seed=0, contexts=JUDGED)
    assert (ours.score_N - theirs.score_N).mean() > 0.01
    assert ours.compute_N.mean() < theirs.compute_N.mean()


def test_the_predicted_gain_falls_along_the_curve_and_is_near_the_truth(bench, predictor):
    episodes = SimulatedEpisodes(bench, 240, JUDGED)
    obs = episodes.reset(1)
    obs = episodes.plan(predictor.plan(obs))
    at = episodes.context_N, episodes.host_N, episodes.topology_N
    cost = CONSTANTS.c_f * obs.context.price_N[:, None] * bench.audit.records.compute_CHKT[at]
    score, gains = bench.audit.records.accuracy_CHKT[at] - cost, []
    for step in range(1, 8):
        gain, spread = predictor.predicted_gain(obs, step)
        truth = score[:, step + 1 :].max(axis=1) - score[:, step]
        assert np.abs(gain - truth).mean() < (0.02 if step > 2 else 0.04), "smoothed over 3 of 8"
        assert (spread >= 0).all()
        gains.append(gain.mean())
        obs = episodes.step(np.zeros(240, dtype=np.bool_))
    assert gains == sorted(gains, reverse=True)


def test_it_stops_by_the_price_of_compute(bench, predictor):
    steps = []
    for price in (0.1, 4.0):
        priced = Bench(bench.audit, TermsSpec(price=Range(price, price), capped=0.0))
        found = run_policy(priced, predictor, 60, seed=0, contexts=JUDGED)
        steps.append(np.median(found.steps_N))
    assert steps[0] >= 5
    assert steps[1] <= 3


def test_it_finds_a_peak_that_cannot_be_foreseen():
    bench = Bench(overfitting_audit(seen=False, contexts=36), TermsSpec(capped=0.0))
    ours = run_policy(bench, PredictThenAct(bench, TRAIN, TWO), 240, seed=0, contexts=JUDGED)
    planned = BUILT_IN["regression_stop"](bench, TRAIN)
    theirs = run_policy(bench, planned, 240, seed=0, contexts=JUDGED)
    assert (ours.score_N - theirs.score_N).mean() > 0.03


def test_plans_are_available_and_what_is_uncertain_is_known(bench, predictor):
    episodes = SimulatedEpisodes(bench, 60, JUDGED)
    obs = episodes.reset(0)
    mean, spread = predictor.predicted_scores(obs.context)
    assert mean.shape == spread.shape == (60, 27 * 8), "every topology at every step"
    assert spread.max() > 0
    plan = predictor.plan(obs)
    assert obs.available_NK[np.arange(60), plan].all()


def test_one_step_leaves_no_curve_to_read():
    with pytest.raises(EsperError, match="no curve to read"):
        PredictThenAct(Bench(made_audit(steps=1, contexts=4)), np.arange(4))
