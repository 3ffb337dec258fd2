"""Does predict-then-act plan and stop well where the best is known?"""

from __future__ import annotations

import numpy as np
import pytest

from audit_synthetic import made_audit
from esper.audit.bench import Bench, SimulatedEpisodes
from esper.audit.cases import TermsSpec
from esper.audit.leaderboard import run_policy
from esper.audit.policies import PlanOnly, fit_planner
from esper.audit.prediction import PredictionSettings, PredictThenAct
from esper.leyline.context import Range
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants

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
    records, gains = bench.audit.records.accuracy_CHKT, []
    at = episodes.context_N, episodes.host_N, episodes.topology_N
    for step in range(1, 8):
        gain, spread = predictor.predicted_gain(obs, step)
        truth = records[(*at, -1)] - records[(*at, step)]
        assert np.abs(gain - truth).mean() < 0.02
        assert (spread >= 0).all()
        gains.append(gain.mean())
        obs = episodes.step(np.zeros(240, dtype=np.bool_))
    assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize(("price", "steps"), [(1e-6, (8, 8)), (60.0, (1, 3))])
def test_it_stops_by_the_price_of_compute(bench, predictor, price, steps):
    priced = Bench(bench.audit, TermsSpec(price=Range(price, price), capped=0.0))
    found = run_policy(priced, predictor, 60, seed=0, contexts=JUDGED)
    assert steps[0] <= np.median(found.steps_N) <= steps[1]


def test_optimism_raises_what_is_uncertain(bench, predictor):
    episodes = SimulatedEpisodes(bench, 60, JUDGED)
    obs = episodes.reset(0)
    mean, spread = predictor.predicted_scores(obs.context)
    assert mean.shape == spread.shape == (60, 27)
    assert spread.max() > 0
    plan = predictor.plan(obs)
    assert obs.available_NK[np.arange(60), plan].all()


def test_one_step_leaves_no_curve_to_read():
    with pytest.raises(EsperError, match="no curve to read"):
        PredictThenAct(Bench(made_audit(steps=1, contexts=4)), np.arange(4))
