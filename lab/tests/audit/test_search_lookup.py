"""Does ASHA by look-up find what training would find, and is its compute counted right?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from audit_synthetic import made_audit
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants
from esper_lab.audit.cases import TermsSpec, draw_cases, recorded, within_caps
from esper_lab.audit.records import scores
from esper_lab.audit.search_lookup import (
    SearchPoint,
    asha,
    better_half,
    matching_runs,
    rung_rows,
    search_points,
)


def searched(audit, topologies, *, draws=2, terms=None, seed=0):
    """A search in every (context, draw, host): results, and (context, host, cases)."""
    contexts, hosts = audit.records.test_CHK.shape[:2]
    grid = np.meshgrid(*(np.arange(n) for n in (contexts, draws, hosts)), indexing="ij")
    context, draw, host = (part.ravel() for part in grid)
    cases = draw_cases(audit, context, draw, terms or TermsSpec(), seed)
    return asha(audit, context, host, draw, cases, topologies, seed), (context, host, cases)


def test_searching_all_topologies_without_noise_finds_the_best():
    """Curves are flat from the first rung on, so the leader there is the leader at the end."""
    audit = made_audit(contexts=6, rate=60.0)
    found, (context, host, cases) = searched(audit, 27)
    at = context, host
    price = cases.price_N
    for n in range(len(context)):
        records = audit.records
        accuracy = records.accuracy_CHKT[at[0][n], at[1][n], :, -1]
        compute = records.compute_CHKT[at[0][n], at[1][n], :, -1]
        value = scores(audit.info, accuracy, compute, float(price[n]))
        value[~within_caps(audit.info, cases)[n]] = -np.inf
        assert found.score_N[n] == pytest.approx(value.max(), abs=1e-6)


def test_compute_adds_up_by_hand():
    """4 topologies, 8 steps, no caps: two stop at 2 of 8, one at 4 of 8, one trains to the end."""
    audit = made_audit(contexts=3)
    found, (context, _, _) = searched(audit, 4, terms=TermsSpec(capped=0.0))
    shares = (2 * 2 + 4 + 8) / 8
    np.testing.assert_allclose(
        found.compute_N, audit.contexts.budget_C[context] * shares, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("topologies", "eighths"), [(1, 8), (2, 2 + 8), (8, 4 * 2 + 2 * 4 + 6 + 8)]
)
def test_compute_of_other_sizes(topologies, eighths):
    audit = made_audit(contexts=2)
    found, (context, _, _) = searched(audit, topologies, terms=TermsSpec(capped=0.0))
    np.testing.assert_allclose(
        found.compute_N, audit.contexts.budget_C[context] * eighths / 8, rtol=1e-6
    )


def test_topologies_above_a_cap_or_without_record_are_never_tried():
    audit = made_audit(contexts=4, noise=0.05)
    audit.records.accuracy_CHKT[1, :, 5:] = np.nan
    found, (context, _, cases) = searched(audit, 27, terms=TermsSpec(capped=1.0))
    rows = np.arange(len(context))
    assert within_caps(audit.info, cases)[rows, found.topology_N].all()
    assert recorded(audit)[context, found.topology_N].all()
    fewest = within_caps(audit.info, cases).sum(axis=1) == 1
    whole_run = audit.contexts.budget_C[context]
    np.testing.assert_allclose(found.compute_N[fewest], whole_run[fewest], rtol=1e-6)


def test_the_winner_is_chosen_on_control_and_scored_on_val_score():
    """Accuracy on val_score tells nothing here, so choosing by control must not raise it."""
    audit = made_audit(contexts=30, noise=0.1)
    audit.records.control_CHKT[:] = made_audit(contexts=30, noise=0.1, seed=9).records.accuracy_CHKT
    truth = made_audit(contexts=30).records.accuracy_CHKT[..., -1]
    found, (context, host, cases) = searched(audit, 27, terms=TermsSpec(capped=0.0))
    info, winner = audit.info, found.topology_N
    compute = audit.records.compute_CHKT[..., -1]
    rows = np.arange(len(winner))
    accuracy = audit.records.accuracy_CHKT[context, host, :, -1] - truth[context, host]
    assert abs(accuracy[rows, winner].mean()) < 0.03
    one = scores(info, truth[context[0], host[0]], compute[context[0], host[0]], cases.price_N[0])
    expected = one[winner[0]] + accuracy[0, winner[0]]
    assert found.score_N[0] == pytest.approx(expected, abs=1e-6)


def test_more_topologies_score_more_and_the_smaller_search_is_inside_the_larger():
    audit = made_audit(contexts=12, constants=ScoreConstants(0.0, 0.0, 0.0))
    found = {size: searched(audit, size)[0] for size in (1, 4, 27)}
    means = [found[size].score_N.mean() for size in (1, 4, 27)]
    assert means[0] < means[1] < means[2]
    assert (found[4].score_N >= found[1].score_N - 1e-6).all()


def test_better_half_rounds_up_and_keeps_the_first_of_equals():
    value = np.array([[1.0, 3.0, 2.0, 9.0, 2.0], [1.0, 1.0, np.nan, 0.0, 0.0]])
    running = np.array([[True, True, True, False, True], [True, True, True, False, False]])
    kept = better_half(value, running)
    assert kept.tolist() == [[False, True, True, False, False], [True, True, False, False, False]]


def test_rungs_are_quarters():
    assert rung_rows(8) == (2, 4, 6)
    assert rung_rows(1) == ()
    assert rung_rows(2) == (1,)


POINTS = [SearchPoint(n, s, c, c) for n, s, c in ((1, 0.1, 1.0), (4, 0.3, 2.0), (16, 0.5, 8.0))]


@pytest.mark.parametrize(
    ("score", "runs"),
    [(0.05, 1.0), (0.1, 1.0), (0.2, 2**0.5), (0.3, 2.0), (0.4, 4.0), (0.6, math.inf)],
)
def test_matching_runs_interpolates_in_the_logarithm_of_compute(score, runs):
    assert matching_runs(POINTS, score) == pytest.approx(runs)


def test_matching_runs_ignores_a_larger_search_that_scores_less():
    dip = [POINTS[0], POINTS[1], SearchPoint(8, 0.25, 4.0, 4.0), POINTS[2]]
    assert matching_runs(dip, 0.3) == pytest.approx(2.0)
    assert matching_runs(dip, 0.4) == pytest.approx(2**2.5)


def test_points_begin_with_a_single_run():
    audit = made_audit(contexts=2)
    with pytest.raises(EsperError, match="begin with searches of 1"):
        search_points([(2, searched(audit, 2)[0])])
    with pytest.raises(EsperError, match="asha:0"):
        searched(audit, 0)
