"""What is deciding worth? On audits whose best topologies are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit_synthetic import made_audit, overfitting_audit
from esper.leyline.context import Range
from esper.leyline.errors import EsperError
from esper.leyline.prices import ScoreConstants
from esper_lab.audit.bench import Bench
from esper_lab.audit.cases import (
    Options,
    TermsSpec,
    draw_cases,
    final_means,
    host_halves,
    within_caps,
)
from esper_lab.audit.planners import mean_price
from esper_lab.audit.records import scores
from esper_lab.audit.regrets import KEPT, RegretSettings, compute_regrets, context_folds, keep_best

FREE = TermsSpec(capped=0.0)
QUICK = RegretSettings(draws=4, terms=FREE, searches=(), folds=2, stops=False)
STOPS = replace(QUICK, draws=2, stops=True)
LEARNT = ("one", "table", "regression")


def test_no_regret_where_one_topology_is_best_everywhere():
    audit = made_audit(constants=ScoreConstants(0.0, 0.0, 0.0), contexts=10)
    found = compute_regrets(audit, QUICK)
    for name in ("one", "table"):
        assert found.minus_best(name).value == pytest.approx(0.0, abs=1e-9)
    assert found.minus_best("regression").value > -0.005
    assert found.minus_best("bare").value < -0.1
    assert not any(gate.passed for gate in found.gates)
    assert found.noise.selection.value == 0.0


def test_best_and_oracle_equal_the_closed_form_without_noise():
    audit = made_audit(contexts=10)
    settings = RegretSettings(draws=3, searches=(), folds=2)
    found = compute_regrets(audit, settings)
    draws = np.arange(30)
    cases = draw_cases(audit, draws // 3, draws % 3, settings.terms, settings.seed)
    fits = within_caps(audit.info, cases)
    last = audit.records.accuracy_CHKT[:, 0, :, -1], audit.records.compute_CHKT[:, 0, :, -1]
    expected = [
        scores(audit.info, last[0][c], last[1][c], price)[fits[n]].max()
        for n, (c, price) in enumerate(zip(draws // 3, cases.price_N, strict=True))
    ]
    by_context = np.reshape(expected, (10, 3)).mean(axis=1)
    np.testing.assert_allclose(found.contenders["best"].score_C, by_context, atol=1e-12)
    np.testing.assert_allclose(found.contenders["oracle"].score_C, by_context, atol=1e-12)


def test_the_oracle_is_above_all_that_plan():
    found = compute_regrets(made_audit(noise=0.03, hidden=0.1), QUICK)
    oracle = found.contenders["oracle"]
    for name, contender in found.contenders.items():
        if not name.endswith(KEPT):
            assert (oracle.score_C >= contender.score_C - 1e-12).all()


def test_best_flatters_itself_on_its_own_half_and_not_on_the_other():
    """Every topology is the same but for noise, so the truth is a constant."""
    nothing = ScoreConstants(0.0, 0.0, 0.0)
    audit = made_audit(noise=0.05, constants=nothing, contexts=40)
    without = made_audit(contexts=40).records.accuracy_CHKT
    audit.records.accuracy_CHKT[:] += 0.5 - without
    found = compute_regrets(audit, QUICK)
    best = found.contenders["best"].score
    assert best.low < 0.5 < best.high
    assert found.contenders["oracle"].score.low > 0.53
    assert found.noise.selection.low > 0.03
    assert found.noise.host_sd == pytest.approx(0.05, rel=0.2)


def test_shrinking_helps_a_noisy_choice_and_leaves_a_clean_one():
    noisy = compute_regrets(made_audit(noise=0.08, contexts=30), QUICK).contenders
    assert noisy["best_shrunk"].minus(noisy["best"]).low > 0.0
    clean = compute_regrets(made_audit(contexts=24, hidden=0.1), QUICK).contenders
    assert abs(clean["best_shrunk"].minus(clean["best"]).value) < 1e-3


def test_regression_beats_the_table_where_the_context_matters():
    found = compute_regrets(made_audit(noise=0.005, contexts=60), QUICK).contenders
    assert found["regression"].minus(found["table"]).low > 0.002
    assert found["table"].minus(found["one"]).low > 0.0


def test_regression_does_not_beat_the_table_where_only_the_price_matters():
    found = compute_regrets(made_audit(noise=0.005, matters=False, contexts=30), QUICK).contenders
    assert found["regression"].minus(found["table"]).value < 1e-3


def test_gates_pass_where_the_hidden_part_decides():
    audit = made_audit(hidden=0.25, contexts=30, noise=0.002)
    table, regression = compute_regrets(audit, QUICK).gates
    assert (table.against, table.least) == ("table", 0.02)
    assert (regression.against, regression.least) == ("regression", 0.01)
    assert table.passed
    assert table.margin.low <= table.margin.value <= table.margin.high
    assert regression.passed


def test_every_pick_is_within_the_caps():
    capped = TermsSpec(price=Range(0.01, 0.01), capped=1.0, cap=Range(0.0, 0.5))
    audit = made_audit(contexts=8)
    found = compute_regrets(audit, RegretSettings(draws=6, terms=capped, searches=(2,), folds=2))
    largest = 100 * (max(audit.info.params) / 100) ** 0.5
    for contender in found.contenders.values():
        assert (contender.params_CD <= np.ceil(largest)).all()
    assert found.contenders["best"].params_CD.mean() > 100


def test_prices_and_caps_are_drawn_as_set_and_do_not_depend_on_other_contexts():
    audit = made_audit(contexts=200, slots=1, hosts=2)
    index = np.arange(200)
    drawn = draw_cases(audit, index, np.zeros_like(index), TermsSpec(), 3)
    assert drawn.price_N.min() >= 0.1
    assert drawn.price_N.max() <= 4.0
    assert np.median(drawn.price_N) == pytest.approx(np.sqrt(0.4), rel=0.25)
    assert np.isfinite(drawn.params_cap_N).mean() == pytest.approx(0.5, abs=0.12)
    assert (drawn.params_cap_N >= 100).all()
    few = draw_cases(audit, index[5:9], np.zeros(4, dtype=np.int64), TermsSpec(), 3)
    assert few == drawn.take(index[5:9])


def test_contexts_not_run_yet_are_left_out():
    audit = made_audit(contexts=12)
    whole = compute_regrets(audit, QUICK)
    for name in ("accuracy_CHKT", "control_CHKT", "compute_CHKT", "test_CHK"):
        getattr(audit.records, name)[[2, 7]] = np.nan
    part = compute_regrets(audit, QUICK)
    assert part.context_C.tolist() == [c for c in range(12) if c not in (2, 7)]
    kept = whole.contenders["best"].score_C[part.context_C]
    np.testing.assert_array_equal(part.contenders["best"].score_C, kept)


def test_a_topology_without_record_in_a_context_is_never_picked_there():
    audit = made_audit(contexts=8, constants=ScoreConstants(0.0, 0.0, 0.0))
    audit.records.accuracy_CHKT[3, :, -1] = np.nan  # the fullest, best everywhere
    found = compute_regrets(audit, QUICK)
    for name in ("best", "best_shrunk", *LEARNT):
        contender = found.contenders[name]
        assert np.isfinite(contender.score_C).all()
        assert contender.params_CD[3].max() < max(audit.info.params)


def test_too_few_hosts_or_contexts_say_what_to_run():
    with pytest.raises(EsperError, match="2 hosts or more"):
        host_halves(1)
    audit = made_audit(contexts=2)
    audit.records.accuracy_CHKT[1] = np.nan
    with pytest.raises(EsperError, match="1 of 2 contexts"):
        compute_regrets(audit, QUICK)


def test_folds_are_even_and_the_mean_price_is_that_of_the_draws():
    assert np.bincount(context_folds(23, 5, seed=1)).tolist() in ([5, 5, 5, 4, 4],)
    prices = Range(0.1, 4.0).log_uniform(np.linspace(0, 1, 20_001))
    assert mean_price(Range(0.1, 4.0)) == pytest.approx(prices.mean(), rel=1e-3)


def test_a_search_of_all_topologies_is_among_the_contenders_and_dearer():
    settings = RegretSettings(draws=2, searches=(1, 4), folds=2)
    found = compute_regrets(made_audit(contexts=6, rate=60.0), settings)
    assert [point.topologies for point in found.search] == [1, 4, 27]
    runs = [point.runs for point in found.search]
    assert runs[0] == 1.0
    assert runs == sorted(runs)
    assert found.contenders["asha:27"].score_C == pytest.approx(
        found.contenders["best"].score_C, abs=1e-6
    )


# ---- when to stop ------------------------------------------------------------------------------


def test_a_step_that_nobody_can_foresee_is_worth_choosing_and_keeping_it_needs_no_choice():
    found = compute_regrets(overfitting_audit(seen=False), STOPS)
    table, regression = found.gates[2:]
    assert (table.against, regression.against) == ("table_stop", "regression_stop")
    assert table.passed
    assert regression.passed
    assert not found.gates[0].passed, "all topologies are alike"
    kept, best = found.contenders["table_kept"], found.contenders["best_stop"]
    price = 4.0 * 4.0 * 0.01  # at most: price, budget, c_f
    assert abs(kept.minus(best).value) < price + 0.4 / 8


def test_a_step_that_follows_from_what_is_seen_is_foreseen():
    found = compute_regrets(overfitting_audit(seen=True, contexts=40), STOPS)
    table, regression = found.gates[2:]
    assert table.passed, "the table sees the price only"
    assert regression.margin.value < table.margin.value / 3


def test_options_with_stop_are_the_records_of_their_steps():
    audit = made_audit(contexts=3, noise=0.02, steps=10)
    options, bench = Options.with_stop(audit.info, most=4), Bench(audit)
    assert np.unique(options.steps_J).tolist() == [3, 5, 8, 10]
    finals = final_means(audit, np.array([1]), options)
    for j, (k, step) in enumerate(zip(options.topology_J, options.steps_J, strict=True)):
        score = finals.accuracy_CJ[2, j] - 0.7 * finals.rent_CJ[2, j]
        assert score == pytest.approx(bench.score(int(k), 2, 1, price=0.7, step=int(step)))
    whole = final_means(audit, np.array([1]))
    np.testing.assert_array_equal(finals.test_CJ[:, options.steps_J == 10], whole.test_CJ)


def test_the_best_step_is_kept_by_the_accuracy_it_is_not_judged_on():
    audit = made_audit(contexts=2, hosts=2, slots=1, steps=4)
    audit.records.control_CHKT[:] = [0.9, 0.2, 0.5, 0.5, 0.4]
    audit.records.accuracy_CHKT[:] = [0.0, 0.1, 0.2, 0.3, 0.4]
    audit.records.test_CHK[:] = 0.5
    kept = keep_best(audit).records
    np.testing.assert_allclose(kept.accuracy_CHKT[0, 0, 0], [0.0, 0.1, 0.2, 0.2, 0.2])
    np.testing.assert_allclose(kept.test_CHK, 0.3)
    assert kept.compute_CHKT is audit.records.compute_CHKT
